// SPDX-License-Identifier: Apache-2.0

package vmbus

import "fmt"

// GUID is a class or an instance of a device, in the order of the wire: the
// first three fields are little-endian.
type GUID [16]byte

// String formats the GUID as Linux does in /sys/bus/vmbus/devices.
func (g GUID) String() string {
	return fmt.Sprintf("%02x%02x%02x%02x-%02x%02x-%02x%02x-%x-%x",
		g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6], g[8:10], g[10:])
}

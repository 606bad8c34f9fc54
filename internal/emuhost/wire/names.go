// SPDX-License-Identifier: Apache-2.0

package wire

// Names that both sides must agree on.
const (
	PortName    = "govmm.emuhost"         // the virtio-serial port
	RootTag     = "machine"               // 9P mount tag of the machine's root
	ExchangeTag = "exchange"              // 9P mount tag of the exchange folder
	ExchangeDir = "/run/emuhost/exchange" // where the exchange folder is mounted

)

// SPDX-License-Identifier: Apache-2.0

package virtio

var NeedEvent = needEvent

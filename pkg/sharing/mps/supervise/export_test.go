// SPDX-License-Identifier: Apache-2.0

package supervise

// ResyncPeriod is how often a supervisor looks without an event.
var ResyncPeriod = &resyncPeriod

// SPDX-License-Identifier: Apache-2.0

package conformance

// The documents of Kubernetes that checks refer to.
const (
	sliceDoc    = "API doc of ResourceSlice"
	limitDoc    = "API doc of ResourceSliceSpec.devices and Device"
	counterDoc  = "KEP-4815, API doc of CounterSet and DeviceCounterConsumption"
	protoDoc    = "kubelet API dra/v1 (api.proto), KEP-4381"
	twiceDoc    = "KEP-4381: NodePrepareResources and NodeUnprepareResources are idempotent"
	cdiDoc      = "KEP-4381, CDI specification"
	podDoc      = "KEP-4381"
	restartDoc  = "KEP-4381: running pods do not depend on the plugin or the kubelet"
	configDoc   = "API doc of OpaqueDeviceConfiguration"
	robustness  = "no document: robustness"
	quietDoc    = "no document: each write of a slice is sent to all who watch"
	securityDoc = "no document: Kubernetes' example driver restricts it by a ValidatingAdmissionPolicy"
)

// checks are all checks, in the order in which they run.
var checks = []check{
	{"slices-published", Required, "The driver publishes devices in ResourceSlices.", sliceDoc, published},
	{"class-selects", Required, "The selectors of the class can be evaluated on every device of the driver, and " +
		"select some.", "API doc of CELDeviceSelector: an error stops the allocation", classSelects},
	{"pool-complete", Required, "A pool has as many slices of its newest generation as resourceSliceCount says.",
		sliceDoc, sliceCheck(eachPool(poolComplete))},
	{"pool-generation", Required, "All slices of a pool have the same generation when an update is over.", sliceDoc,
		sliceCheck(eachPool(poolGeneration))},
	{"pool-node", Required, "The slices of a node-local pool are all of one node.", sliceDoc,
		sliceCheck(eachPool(poolOnOneNode))},
	{"device-names", Required, "The names of devices are unique in their pool.", sliceDoc,
		sliceCheck(eachPool(deviceNames))},
	{"slice-limits", Required, "Slices and devices are within the limits of the API.", limitDoc,
		sliceCheck(eachPool(sliceLimits))},
	{"counters", Required, "Counter sets have unique names, devices consume counters that are there, and no more of " +
		"them than there is.", counterDoc, sliceCheck(eachPool(counters))},
	{"slice-owner", Optional, "The slices of a node have it as owner, so that they go with it.",
		"the helper k8s.io/dynamic-resource-allocation/kubeletplugin does it", sliceCheck(eachPool(sliceOwner))},
	{"standard-attributes", Optional, "Attributes of resource.kubernetes.io have the types that are agreed for them.",
		"k8s.io/dynamic-resource-allocation/deviceattribute", sliceCheck(eachPool(standardAttributes))},

	{"pod-starts", Required, "A pod with a claim starts, with a device of the driver.", podDoc, podStarts},
	{"pod-ends", Required, "A pod with a claim ends, its claim is released, and the next pod starts.", podDoc, podEnds},
	{"pods-at-once", Required, "Pods that come at once all start, and each sees its own device.", podDoc, podsAtOnce},
	{"shared-claim", Required, "Two pods and two containers use one claim; the end of one pod takes nothing from the " +
		"other.", podDoc, sharedClaim},
	{"force-deleted", Required, "After force-deleted pods, their devices are usable.", podDoc, forceDeleted},

	{"prepare-answers", Required, "Prepare answers with each allocated device, for its request, and with no other.",
		protoDoc, call(1, prepareAnswers)},
	{"prepare-several", Required, "Prepare and Unprepare of several claims answer for each.", protoDoc,
		call(2, prepareSeveral)},
	{"prepare-twice", Required, "Prepare of a prepared claim succeeds with the same answer.", twiceDoc,
		call(1, prepareTwice)},
	{"prepare-again", Required, "Prepare succeeds after Unprepare.", protoDoc, call(1, prepareAgain)},
	{"prepare-uid", Required, "Prepare refuses a claim whose UID is another.", protoDoc, call(1, prepareWrongUID)},
	{"unprepare-twice", Required, "Unprepare of an unprepared claim succeeds.", twiceDoc, call(1, unprepareTwice)},
	{"unprepare-unknown", Required, "Unprepare of a claim that was never prepared succeeds.", twiceDoc,
		call(1, unprepareUnknown)},
	{"unprepare-deleted", Required, "Unprepare of a deleted claim succeeds, and its device is usable.", protoDoc,
		call(1, unprepareDeleted)},
	{"calls-at-once", Required, "Calls at the same time, also for one claim, succeed with one answer.", twiceDoc,
		call(1, callsAtOnce)},
	{"share-id", Required, "Prepare answers with the share ID of a device that has one.", "KEP-5075, " + protoDoc,
		call(1, shareIDs)},
	{"cdi-names", Required, "The CDI devices of a claim have fully-qualified names, each once.", cdiDoc,
		call(1, cdiNames)},
	{"cdi-resolves", Required, "The CDI devices of a prepared claim are defined in the CDI directory.", cdiDoc,
		call(1, cdiResolves)},
	{"cdi-removed", Optional, "Unprepare removes the CDI devices of the claim.", robustness, call(1, cdiRemoved)},
	{"cdi-recreated", Optional, "Prepare of a prepared claim writes a CDI file that has been removed.", robustness,
		call(1, cdiRecreated)},
	{"forgotten-claim", Optional, "The device of a deleted claim that the kubelet never unprepares becomes usable.",
		robustness, call(1, forgottenClaim)},

	{"plugin-restart", Required, "When the plugin restarts, pods run on and can end, and new ones start.", restartDoc,
		restart("restarts the plugin", func(s *suite) string { return s.RestartPlugin })},
	{"plugin-restart-start", Required, "A pod that comes while the plugin restarts starts, and can end.", restartDoc,
		startsDuringRestart},
	{"plugin-restart-end", Required, "A pod that ends while the plugin restarts is gone afterwards, with its claim.",
		restartDoc, endsDuringRestart},
	{"plugin-restart-quiet", Optional, "A restart of the plugin writes no slice if no device has changed.", quietDoc,
		restartWritesNothing},
	{"kubelet-restart", Required, "When the kubelet restarts, pods run on and can end, and new ones start.", restartDoc,
		restart("restarts the kubelet", func(s *suite) string { return s.RestartKubelet })},
	{"plugin-upgrade", Optional, "When the plugin is replaced by another version, pods run on and can end, and new " +
		"ones start.", "the helper kubeletplugin, option RollingUpdate",
		restart("upgrades the plugin", func(s *suite) string { return s.UpgradePlugin })},
	{"upgrade-seamless", Optional, "Pods start without a failed Prepare while the plugin is replaced.",
		"the helper kubeletplugin, option RollingUpdate", startsDuringUpgrade},

	{"admin-access", Optional, "A claim with admin access gets a device in use, and its end takes nothing from the " +
		"user.", "KEP-5018", adminAccess},
	{"device-status", Optional, "The claim's status has the allocated devices.", "KEP-4817", deviceStatus},
	{"health", Optional, "The health service names published devices.", "KEP-4680", health},
	{"taints", Optional, "A pod whose device gets a NoExecute taint ends, and the device is usable without the taint.",
		"KEP-5055", taints},
	{"extended-resource", Optional, "A pod that names the class as an extended resource starts.", "KEP-5004",
		extendedResource},
	{"metadata", Optional, "Containers have a file with the attributes of their devices.", "KEP-5304", deviceMetadata},
	{"config-accepted", Optional, "Pods start with the parameters that the driver documents.", configDoc,
		configAccepted},
	{"config-refused", Optional, "A claim with wrong parameters is refused with a reason, and the driver goes on.",
		configDoc, configRefused},
	{"config-alternatives", Required, "Parameters for a request are also for its alternatives.",
		"API doc of DeviceClaimConfiguration.requests, KEP-4816", configOfAlternatives},
	{"own-node", Optional, "The plugin's service account can only write slices of its own node.", securityDoc, ownNode},
	{"sick-device", Optional, "A sick device is tainted or withdrawn, also after a restart, others stay usable, and " +
		"it comes back.", "KEP-5055; robustness", sickDevice},
	// Last: it judges what the others have seen.
	{"generation-rises", Required, "A pool that gets more slices gets another generation.", sliceDoc, generationRises},
}

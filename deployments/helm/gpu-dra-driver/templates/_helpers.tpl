{{- define "gpu-dra-driver.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release's own name is enough when it already says what this is. */}}
{{- define "gpu-dra-driver.fullname" -}}
{{- $name := include "gpu-dra-driver.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 45 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (printf "%s-kubelet-plugin" (include "gpu-dra-driver.fullname" .)) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The plugin as the API server names it. */}}
{{- define "gpu-dra-driver.user" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "gpu-dra-driver.serviceAccountName" .) }}
{{- end }}

{{/* Where a container sees the driver root: its parent is mounted at /driver-root. */}}
{{- define "gpu-dra-driver.driverRootMount" -}}
{{- clean (printf "/driver-root/%s" (base (clean .Values.driverRoot))) }}
{{- end }}

{{- define "gpu-dra-driver.sharedClass" -}}
{{- printf "shared.%s" .Values.driverName }}
{{- end }}

{{- define "gpu-dra-driver.vfioClass" -}}
{{- printf "vfio.%s" .Values.driverName }}
{{- end }}

{{- define "gpu-dra-driver.vgpuClass" -}}
{{- printf "vgpu.%s" (trimPrefix "gpu." .Values.driverName) }}
{{- end }}

{{- define "gpu-dra-driver.monitorClass" -}}
{{- printf "monitor.%s" .Values.driverName }}
{{- end }}

{{/*
The class of MIG partitions, or with a profile the one of those: mig.nvidia.com and mig-1g.10gb.me.nvidia.com, which is what
NVIDIA's driver and device plugin have in their names. "mig" takes the place of "gpu." in the name of the driver, and otherwise
goes in front of it. Takes a list: the root, and a profile where there is one.
*/}}
{{- define "gpu-dra-driver.migClass" -}}
{{- $profile := "" }}
{{- with rest . }}{{ $profile = printf "-%s" (include "gpu-dra-driver.migName" (first .)) }}{{ end }}
{{- printf "mig%s.%s" $profile (trimPrefix "gpu." (first .).Values.driverName) }}
{{- end }}

{{/* The profiles with a class of their own, as a JSON array: models are replaced by their profiles. */}}
{{- define "gpu-dra-driver.migProfiles" -}}
{{- $models := .Files.Get "mig-profiles.yaml" | fromYaml }}
{{- $profiles := list }}
{{- range .Values.deviceClasses.migProfiles }}
{{- $profiles = concat $profiles (get $models . | default (list .)) }}
{{- end }}
{{- uniq $profiles | toJson }}
{{- end }}

{{/* A profile as names can have it, and as the device plugin writes it: no name can have a "+", and no two profiles become one. */}}
{{- define "gpu-dra-driver.migName" -}}
{{- replace "+" "." . }}
{{- end }}

{{/* An image by repository, tag and digest. The digest decides alone: not every runtime accepts both. */}}
{{- define "gpu-dra-driver.reference" -}}
{{- $parts := splitList "/" .repository }}
{{- with .registry }}
{{- $host := first $parts }}
{{- if and (gt (len $parts) 1) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")) }}{{ $parts = rest $parts }}{{ end }}
{{- $parts = prepend $parts (trimSuffix "/" .) }}
{{- end }}
{{- join "/" $parts }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}

{{/* The registry of all images; empty: that of each repository. */}}
{{- define "gpu-dra-driver.registry" -}}
{{- default "" (default dict .Values.global).imageRegistry }}
{{- end }}

{{/* The driver's image. A released chart names the digest of its version. */}}
{{- define "gpu-dra-driver.image" -}}
{{- $released := "" }}
{{- with .Chart.Annotations }}{{ $released = index . "gpu-dra-driver/image-digest" }}{{ end }}
{{- $digest := default (ternary "" $released (not (empty .Values.image.tag))) .Values.image.digest }}
{{- include "gpu-dra-driver.reference" (dict "registry" (include "gpu-dra-driver.registry" .) "repository" .Values.image.repository
  "tag" (default .Chart.AppVersion .Values.image.tag) "digest" $digest) }}
{{- end }}

{{/*
The supervisor's image. It stays the same in releases that do not change the supervisor: nothing replaces its pods, and tools
that wait for a DaemonSet (Flux, helm --wait) would wait for ever. A build of your own has one tag for all programs.
*/}}
{{- define "gpu-dra-driver.supervisorImage" -}}
{{- $own := .Values.mps.supervisor.image }}
{{- $version := ternary .Chart.AppVersion .Values.mps.supervisor.version (hasSuffix "-dev" .Chart.AppVersion) }}
{{- $tag := default (default $version .Values.image.tag) $own.tag }}
{{- $digest := default (ternary "" .Values.image.digest (not (empty $own.tag))) $own.digest }}
{{- include "gpu-dra-driver.reference" (dict "registry" (include "gpu-dra-driver.registry" .)
  "repository" (default .Values.image.repository $own.repository) "tag" $tag "digest" $digest) }}
{{- end }}

{{/* Helm sees the version of the cluster, which may have a suffix: v1.36.2-gke.100. A claim of any user can end the
schedulers 1.36.0 and 1.36.1 (docs/start/compatibility.md), and an API server of 1.36 works with all of its patches. */}}
{{- define "gpu-dra-driver.schedulerImage" -}}
{{- $image := .Values.scheduler.image }}
{{- $version := regexReplaceAll "[-+].*" .Capabilities.KubeVersion.Version "" }}
{{- if semverCompare ">=1.36.0 <1.36.2" $version }}{{ $version = "v1.36.2" }}{{ end }}
{{- include "gpu-dra-driver.reference" (dict "registry" (include "gpu-dra-driver.registry" .) "repository" $image.repository
  "tag" (default $version $image.tag) "digest" $image.digest) }}
{{- end }}

{{/* Variables of a container: name → value. */}}
{{- define "gpu-dra-driver.env" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-dra-driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end }}

{{- define "gpu-dra-driver.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "gpu-dra-driver.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The same for the supervisor of MPS daemons. */}}
{{- define "gpu-dra-driver.mpsSelectorLabels" -}}
{{- include "gpu-dra-driver.selectorLabels" . | replace "component: kubelet-plugin" "component: mps-supervisor" }}
{{- end }}

{{- define "gpu-dra-driver.mpsLabels" -}}
{{- include "gpu-dra-driver.labels" . | replace "component: kubelet-plugin" "component: mps-supervisor" }}
{{- end }}

{{/* The same for the plugin of nodes whose pods use GPUs of other nodes. */}}
{{- define "gpu-dra-driver.remoteName" -}}
{{- printf "%s-remote" (include "gpu-dra-driver.fullname" .) }}
{{- end }}

{{- define "gpu-dra-driver.remoteSelectorLabels" -}}
{{- include "gpu-dra-driver.selectorLabels" . | replace "component: kubelet-plugin" "component: remote" }}
{{- end }}

{{- define "gpu-dra-driver.remoteLabels" -}}
{{- include "gpu-dra-driver.labels" . | replace "component: kubelet-plugin" "component: remote" }}
{{- end }}

{{/* The same for the controller. */}}
{{- define "gpu-dra-driver.controllerName" -}}
{{- printf "%s-controller" (include "gpu-dra-driver.fullname" .) }}
{{- end }}

{{- define "gpu-dra-driver.controllerSelectorLabels" -}}
{{- include "gpu-dra-driver.selectorLabels" . | replace "component: kubelet-plugin" "component: controller" }}
{{- end }}

{{- define "gpu-dra-driver.controllerLabels" -}}
{{- include "gpu-dra-driver.labels" . | replace "component: kubelet-plugin" "component: controller" }}
{{- end }}

{{/* The same for the second scheduler. */}}
{{- define "gpu-dra-driver.schedulerName" -}}
{{- printf "%s-scheduler" (include "gpu-dra-driver.fullname" .) }}
{{- end }}

{{- define "gpu-dra-driver.schedulerSelectorLabels" -}}
{{- include "gpu-dra-driver.selectorLabels" . | replace "component: kubelet-plugin" "component: scheduler" }}
{{- end }}

{{- define "gpu-dra-driver.schedulerLabels" -}}
{{- include "gpu-dra-driver.labels" . | replace "component: kubelet-plugin" "component: scheduler" }}
{{- end }}

{{/* A PodDisruptionBudget: one replica of the component is evicted at a time. */}}
{{- define "gpu-dra-driver.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include (printf "gpu-dra-driver.%sName" .component) .root }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include (printf "gpu-dra-driver.%sLabels" .component) .root | nindent 4 }}
spec:
  maxUnavailable: 1
  # A replica that does not work must not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include (printf "gpu-dra-driver.%sSelectorLabels" .component) .root | nindent 6 }}
{{- end }}

{{- define "gpu-dra-driver.strongestClass" -}}
{{- printf "strongest.%s" .Values.driverName }}
{{- end }}

{{/*
Which nodes get the plugin. nodeSelectorTerms are ORed: one of the labels is enough, whoever put it there.
pci-0302 is a 3D controller (data centre GPUs), pci-0300 a VGA controller (workstation and consumer GPUs).
*/}}
{{- define "gpu-dra-driver.affinity" -}}
{{- if .Values.kubeletPlugin.affinity }}
{{- toYaml .Values.kubeletPlugin.affinity }}
{{- else if and .Values.simulate.enabled (not .Values.simulate.profile) -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: gpu.nvidia.com/sim-profile, operator: Exists}
{{- else if not .Values.simulate.enabled -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      # Node Feature Discovery: a PCI device of NVIDIA, by vendor alone or by class and vendor.
      - matchExpressions:
          - {key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}
      - matchExpressions:
          - {key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ["true"]}
      - matchExpressions:
          - {key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ["true"]}
      # Node Feature Discovery on Tegra-based systems, whose GPU is no PCI device.
      - matchExpressions:
          - {key: feature.node.kubernetes.io/cpu-model.vendor_id, operator: In, values: ["NVIDIA"]}
      # GPU Feature Discovery, the GPU operator, or an administrator by hand.
      - matchExpressions:
          - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
{{- end }}
{{- end }}

{{/* Whether classes have extended resources. Kubernetes 1.34 never frees the GPUs of pods that ask for one. */}}
{{- define "gpu-dra-driver.extendedResources" -}}
{{- if semverCompare ">=1.35.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* Whether pods with extended resources are evicted: before Kubernetes 1.35 the classes have none. */}}
{{- define "gpu-dra-driver.evicts" -}}
{{- if and .Values.controller.enabled .Values.controller.eviction.enabled (semverCompare ">=1.35.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* Whether the plugin marks idle claims. */}}
{{- define "gpu-dra-driver.marksIdle" -}}
{{- if and (default dict .Values.idle).enabled (default dict .Values.metrics.containers).usage }}true{{ end }}
{{- end }}

{{/* Whether the controller evicts pods with idle claims. */}}
{{- define "gpu-dra-driver.evictsIdle" -}}
{{- if and .Values.controller.enabled (include "gpu-dra-driver.marksIdle" .) .Values.idle.eviction.enabled }}true{{ end }}
{{- end }}

{{/* Whether the controller makes the scheduler try waiting pods again. Shares need Kubernetes 1.36. No version counts them
once yet: the first that does is the end of this range. */}}
{{- define "gpu-dra-driver.retries" -}}
{{- if and .Values.controller.enabled .Values.controller.retry.enabled .Values.deviceClasses.create (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* Whether possible partitions are published on demand. Partitions need Kubernetes 1.36. Values of older charts do not say. */}}
{{- define "gpu-dra-driver.onDemand" -}}
{{- if and .Values.controller.enabled (dig "onDemand" "enabled" true .Values.controller) .Values.rbac.create (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* The ConfigMap in which the controller names nodes whose partitions pods wait for. */}}
{{- define "gpu-dra-driver.partitionRequests" -}}
{{- printf "%s-partition-requests" (include "gpu-dra-driver.fullname" .) }}
{{- end }}

{{/* Whether the controller counts GPU seconds. Values of older charts do not say. */}}
{{- define "gpu-dra-driver.bills" -}}
{{- if and .Values.controller.enabled (dig "bill" "enabled" true .Values.controller) .Values.rbac.create }}true{{ end }}
{{- end }}

{{/* Whether devices are kept for a pod that preempts others: before Kubernetes 1.37, DeviceTaintRules are not in v1. */}}
{{- define "gpu-dra-driver.keepsDevices" -}}
{{- if and .Values.controller.preemption.enabled (semverCompare ">=1.37.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* The class by whose updates it does that. */}}
{{- define "gpu-dra-driver.retryClass" -}}
{{- printf "retry.%s" .Values.driverName }}
{{- end }}

{{/* Whether pods of older systems are converted: their claims are for shares, which need Kubernetes 1.36. */}}
{{- define "gpu-dra-driver.converts" -}}
{{- if and .Values.controller.enabled .Values.controller.conversion.families (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the driver on the cluster of the current kubeconfig, or upgrades it. First it looks for what is missing, and
# changes nothing if something is. Then it builds the image, gives it to the nodes, labels nodes, installs the chart,
# waits for the plugins and runs helm test.
#
# usage: deployments/install.sh HOW [--nodes A,B] [--simulate PROFILE] [--check] [-- --values FILE | --set KEY=VALUE ...]
#
# HOW the nodes get the image:
#   --push REGISTRY/PATH     build it and push it there, with the login of docker login; the nodes pull it
#   --on-node 'COMMAND'      build it and import it on each node. COMMAND runs what follows it, as root, on the node $NODE
#                            with the address $ADDRESS: 'ssh root@$ADDRESS', 'docker exec -i $NODE' (kind)
#   --image REPOSITORY:TAG   build nothing: the nodes have this image, or can pull it
# --nodes A,B                nodes with GPUs; they get the label nvidia.com/gpu.present=true. Without it: those that have
#                            such a label, and with --on-node those on which NVIDIA's driver is loaded
# --simulate PROFILE         simulated GPUs, such as dgx-h100, on the nodes of --nodes (docs/start/try-without-gpus.md)
# --check                    only say what is missing
# -- ...                     values of the chart. Those of an earlier run stay
# KUBECTL, HELM              the commands
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
: "${KUBECTL:=kubectl}" "${HELM:=helm}"
name=gpu-dra-driver chart=$root/deployments/helm/gpu-dra-driver
push='' on_node='' image='' nodes='' profile='' check=''

usage() {
	sed -n '/^# usage/,/^# KUBECTL/s/^# \{0,1\}//p' "$root/deployments/install.sh"
}
while [ $# -gt 0 ]; do
	case $1 in
	--push | --on-node | --image | --nodes | --simulate)
		[ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
		case $1 in
		--push) push=$2 ;;
		--on-node) on_node=$2 ;;
		--image) image=$2 ;;
		--nodes) nodes=$2 ;;
		--simulate) profile=$2 ;;
		esac
		shift 2
		;;
	--check) check=1; shift ;;
	--help | -h) usage; exit ;;
	--) shift; break ;;
	*) echo "unknown argument $1" >&2; usage >&2; exit 2 ;;
	esac
done

missing=0
say() { # what is missing, or what to do about it
	echo "missing: $1" >&2
	missing=1
}
stop() { # if anything is missing
	[ $missing = 0 ] || { echo "Nothing was changed." >&2; exit 1; }
}
older() { # older A B: whether version A, such as v1.36.2, is older than B
	[ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "${1#v}" "${2#v}" | sort -V | head -n 1)" = "${1#v}" ]
}
listed() { # listed WORD LIST: whether the word is in the list
	printf '%s\n' $2 | grep -qxF -- "$1"
}

# What this machine needs.
case "${push:+x}${on_node:+x}${image:+x}" in
x) ;;
*) say "how the nodes get the image: one of --push, --on-node and --image (--help)" ;;
esac
case $image in
'') "$root/hack/prerequisites.sh" || missing=1 ;;
esac
case ${image##*/} in
?*:?* | '') ;;
*) say "a tag in --image $image" ;;
esac
for word in "$@"; do
	case $word in
	--namespace* | -n | --kube* | --release-name)
		say "values after --, not $word: the release is $name in the namespace $name of the cluster of \$KUBECONFIG" ;;
	- | --values=- | /dev/fd/* | /proc/*/fd/*) say "values in a file that can be read several times, not $word" ;;
	esac
done
command -v "${KUBECTL%% *}" >/dev/null || say "kubectl: install it, or name it with KUBECTL="
command -v "${HELM%% *}" >/dev/null || say "helm: install version 3.18 or newer, or name it with HELM="
stop

# What the cluster is, and what this user may do there.
served=$($KUBECTL get --raw /version 2>&1) || say "an answer of the cluster: $served"
stop
kubernetes=$(echo "$served" | sed -n 's/.*"gitVersion": *"\(v[0-9.]*\).*/\1/p')
if older "$kubernetes" v1.34.0; then
	say "Kubernetes 1.34 or newer: this is $kubernetes"
elif older "$kubernetes" v1.36.2; then
	echo "note: Kubernetes $kubernetes lacks some of what the driver can do, such as shares before 1.36: docs/start/compatibility.md"
fi
$KUBECTL auth can-i '*' '*' --all-namespaces >/dev/null 2>&1 || say "the rights of an administrator of the cluster"
stop

# The values: those of an earlier run, then those of the flags, then those of the command line. The rendered chart says
# which labels the nodes of the plugin have, and the name of the driver.
before=$(mktemp) flags=$(mktemp) log=$(mktemp)
trap 'rm -f "$before" "$flags" "$log"' EXIT
write_flags() { # write_flags REPOSITORY TAG DIGEST
	printf 'image: {repository: "%s", tag: "%s", digest: "%s"}\n' "$@" >"$flags"
	[ -z "$profile" ] || echo 'simulate: {enabled: true}' >>"$flags"
}
installed=$($HELM list --namespace $name --short --filter "^$name\$")
[ -z "$installed" ] || $HELM get values $name --namespace $name --output yaml >"$before"
case $image in
'') write_flags "${push:-localhost}/$name" "" "" ;;
*) write_flags "${image%:*}" "${image##*:}" "" ;;
esac
set -- --values "$before" --values "$flags" "$@"
rendered=$($HELM template $name "$chart" --namespace $name --kube-version "$kubernetes" "$@" \
	--show-only templates/daemonset.yaml 2>&1) || say "values that the chart accepts: $rendered"
stop
program=dra-kubelet-plugin simulated=''
case $rendered in *$program-sim*) program=$program-sim simulated=1 ;; esac
driver=$(echo "$rendered" | sed -n 's/.*{name: DRIVER_NAME, value: \(.*\)}/\1/p')

# NAME READY PROCESSOR RUNTIME KUBELET GPUS ADDRESS...
all=$($KUBECTL get nodes -l kubernetes.io/os=linux -o go-template='{{range .items}}{{$s := .status}}{{.metadata.name}} {{range $s.conditions}}{{if eq .type "Ready"}}{{.status}}{{end}}{{end}} {{$s.nodeInfo.architecture}} {{$s.nodeInfo.containerRuntimeVersion}} {{$s.nodeInfo.kubeletVersion}} {{or (index $s.capacity "nvidia.com/gpu") "0"}}{{range $s.addresses}}{{if eq .type "InternalIP"}} {{.address}}{{end}}{{end}}
{{end}}')
on() { # on LIMIT NODE ADDRESS COMMAND...
	(limit=$1 NODE=$2 ADDRESS=$3 terminal=''; export NODE ADDRESS; shift 3
	[ ! -t 0 ] || terminal=--foreground # ssh may ask there
	timeout $terminal "$limit" sh -c "$on_node \"\$@\"" sh "$@")
}
ctr() { # ctr KUBELET: the command that imports images on a node with that kubelet
	case $1 in
	*+k3s*) echo k3s ctr ;;
	*+rke2*) echo /var/lib/rancher/rke2/bin/ctr --address /run/k3s/containerd/containerd.sock --namespace k8s.io ;;
	*) echo ctr --namespace k8s.io ;;
	esac
}
nodes_given=$(echo "$nodes" | tr ',' ' ')
wanted=$nodes_given # they get the label
for node in $wanted; do
	echo "$all" | grep -q "^$node " || say "node $node, which --nodes names: see $KUBECTL get nodes"
done
# With an affinity or a profile of the values, the chart chooses nodes by something else than these labels.
labels=$(echo "$rendered" | sed -n 's/^ *- {key: \(.*\), operator: In, values: \["\(.*\)"\]}$/\1=\2/p
	s/^ *- {key: \(.*sim-profile\), operator: Exists}$/\1/p')
labelled=$(for label in $labels; do
	$KUBECTL get nodes -l "$label" -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'
done)
published=$($KUBECTL get resourceslices --field-selector "spec.driver=$driver" \
	-o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' 2>/dev/null) ||
	say "ResourceSlices (resource.k8s.io/v1) in the API server: enable Dynamic Resource Allocation"
left_out=''
while read -r node ready processor runtime kubelet gpus address _; do
	[ -n "$node" ] || continue
	if [ "$ready" != True ]; then
		echo "note: node $node is not ready, and is left out"
		left_out=1
		continue
	fi
	# The controller runs on any node.
	[ -n "$image" ] || [ "$processor" = "$(go env GOARCH)" ] ||
		say "an image for $processor, as node $node needs it: build a release with make dist, and use --image"
	loaded='' for_gpus=''
	if [ -n "$on_node" ]; then
		case $runtime in
		containerd://*) ;;
		*) say "containerd on node $node, which has $runtime: use --push" ;;
		esac
		if ! answer=$(on 30 "$node" "$address" $(ctr "$kubelet") version </dev/null 2>&1); then
			say "a way to import images on node $node. '$on_node $(ctr "$kubelet") version', with NODE=$node and \
ADDRESS=$address, did not succeed within 30 s: $answer"
			continue
		fi
		if on 30 "$node" "$address" test -e /proc/driver/nvidia/version </dev/null >/dev/null 2>&1; then loaded=1; fi
	fi
	if listed "$node" "$nodes_given $labelled"; then
		for_gpus=1
	elif [ -n "$loaded" ] && [ -z "$nodes_given$simulated" ] && [ -n "$labels" ]; then
		for_gpus=1 wanted="$wanted $node"
	fi
	[ -n "$for_gpus" ] || continue
	! older "$kubelet" v1.34.0 || say "Kubernetes 1.34 or newer on node $node, which has $kubelet"
	case $runtime in
	docker://* | containerd://1.[0-6].*) say "containerd 1.7 or newer, or CRI-O, on node $node, which has $runtime" ;;
	containerd://1.7.*) echo "note: node $node has $runtime: its configuration must have enable_cdi = true" ;;
	esac
	[ "$gpus" = 0 ] || say "node $node for this driver alone: the device plugin gives out its $gpus GPUs (docs/migrate/migrate.md)"
	[ -n "$installed" ] || ! listed "$node" "$published" ||
		say "node $node for this driver alone: another driver $driver has published its GPUs (docs/migrate/migrate.md)"
	[ -z "$on_node" ] || [ -n "$loaded$simulated" ] || say "NVIDIA's driver on node $node: its kernel module is not loaded"
done <<end
$all
end
[ -n "$labelled$wanted" ] || [ -z "$labels" ] || say "a node with GPUs: none has a label of Node Feature Discovery, or \
NVIDIA's driver. Name them with --nodes"
if [ -n "$simulated" ] && [ -z "$profile" ]; then
	[ -z "$nodes_given" ] || say "--simulate PROFILE for --nodes, since the values have simulated GPUs"
	echo "note: the values have simulated GPUs; for real ones, give -- --set simulate.enabled=false"
fi
stop
# Helm compares with what is there, such as what belongs to another release.
answer=$($HELM upgrade --install $name "$chart" --namespace $name --create-namespace "$@" --dry-run=server 2>&1) ||
	say "a cluster that accepts the chart: $answer"
stop
if [ -n "$check" ]; then
	echo "Nothing is missing."
	exit
fi

if [ -z "$image" ]; then
	echo "building the image"
	make -C "$root" image PUSH="$push" >"$log" || { cat "$log" >&2; exit 1; }
	# The digest replaces the pods of an earlier image with the same tag.
	[ -z "$push" ] || write_flags "$push/$name" "" "$(sed -n "s#^pushed $push/$name:.*@##p" "$log")"
fi
if [ -n "$on_node" ]; then
	echo "$all" | while read -r node ready _ _ kubelet _ address _; do
		[ "$ready" = True ] || continue
		echo "importing the image on node $node"
		answer=$(on 10m "$node" "$address" $(ctr "$kubelet") images import - <"$root/_output/images.tar" 2>&1) ||
			{ echo "$answer" >&2; exit 1; }
	done
fi
label=nvidia.com/gpu.present=true
[ -z "$profile" ] || label=gpu.nvidia.com/sim-profile=$profile
for node in $wanted; do
	$KUBECTL label node "$node" --overwrite "$label"
done
$KUBECTL get namespace $name >/dev/null 2>&1 || $KUBECTL create namespace $name
# The plugin is privileged: NVML opens device nodes that are hidden from other containers.
$KUBECTL label namespace $name --overwrite pod-security.kubernetes.io/enforce=privileged
$HELM upgrade --install $name "$chart" --namespace $name --hide-notes "$@"
workloads=$($KUBECTL --namespace $name get daemonset,deployment -o name \
	-l 'app.kubernetes.io/component in (kubelet-plugin, controller)')
# An imported image has the same tag as the one before.
[ -z "$installed" ] || [ -z "$on_node" ] || $KUBECTL --namespace $name rollout restart $workloads
if (for workload in $workloads; do
	$KUBECTL --namespace $name rollout status "$workload" --timeout=5m || [ -n "$left_out" ] || exit 1
done) && $HELM test $name --namespace $name --logs --timeout 2m; then
	exit
fi
echo "The driver is installed, and does not work yet. Its pods, and what each plugin sees (docs/reference/check.md):" >&2
$KUBECTL --namespace $name get pods -o wide >&2
for pod in $($KUBECTL --namespace $name get pods -l app.kubernetes.io/component=kubelet-plugin -o name); do
	$KUBECTL --namespace $name exec "$pod" -- $program check >&2 || true
done
exit 1

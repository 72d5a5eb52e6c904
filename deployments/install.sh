#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the driver on the cluster of the current kubeconfig, or upgrades it. First it looks for what is missing: if
# anything is, it says all of it and changes nothing. Then it builds the image, gives it to the nodes, labels nodes,
# installs the chart, waits for the plugins and runs helm test.
#
# usage: deployments/install.sh HOW [--nodes A,B] [--simulate PROFILE] [--check] [-- flags of helm upgrade]
#
# HOW the nodes get the image:
#   --push REGISTRY/PATH     build it and push it there, with the login of docker login; the nodes pull it
#   --on-node 'COMMAND'      build it and import it on each node. COMMAND runs what follows it on the node $NODE, which has
#                            the address $ADDRESS: 'ssh root@$ADDRESS', 'docker exec -i $NODE' (kind)
#   --image REPOSITORY:TAG   build nothing: the nodes have this image, or can pull it
# --nodes A,B                nodes with GPUs; they get the label nvidia.com/gpu.present=true. Without it: those that have
#                            such a label, and with --on-node those on which NVIDIA's driver is loaded
# --simulate PROFILE         simulated GPUs, such as dgx-h100, on the nodes of --nodes (docs/install.md names the profiles)
# --check                    only say what is missing
# KUBECTL, HELM              the commands
set -eu
cd "$(dirname "$0")/.."
: "${KUBECTL:=kubectl}" "${HELM:=helm}"
name=gpu-dra-driver chart=deployments/helm/gpu-dra-driver version=$(cat VERSION)
push='' on_node='' image='' nodes='' profile='' check=''

usage() {
	sed -n '/^# usage/,/^# KUBECTL/s/^# \{0,1\}//p' "$0"
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
say() { # a problem and what to do
	echo "missing: $1" >&2
	missing=1
}
stop() {
	[ $missing = 0 ] || { echo "Nothing was changed." >&2; exit 1; }
}

case "${push:+x}${on_node:+x}${image:+x}" in
x) ;;
*) say "how the nodes get the image: one of --push, --on-node and --image (--help)" ;;
esac
command -v "$KUBECTL" >/dev/null || say "kubectl: install it, or name it with KUBECTL="
command -v "$HELM" >/dev/null || say "helm: install version 3.18 or newer, or name it with HELM="
[ -n "$image" ] || ./hack/prerequisites.sh || missing=1
stop
served=$("$KUBECTL" get --raw /version 2>&1) || say "an answer of the cluster: $served"
stop

# The chart decides which labels a node of the plugin has, and the name of the driver.
case $image in
*:*) set -- --set "image.repository=${image%:*},image.tag=${image##*:}" "$@" ;;
?*) say "a tag in --image $image" ;;
esac
[ -z "$push" ] || set -- --set "image.repository=$push/$name" "$@"
[ -z "$profile" ] || set -- --set simulate.enabled=true "$@"
rendered=$("$HELM" template $name $chart --namespace $name "$@" -s templates/daemonset.yaml 2>&1) ||
	say "values that the chart accepts: $rendered"
stop
driver=$(echo "$rendered" | sed -n 's/.*{name: DRIVER_NAME, value: \(.*\)}/\1/p')

# NAME PROCESSOR RUNTIME KUBELET GPUS ADDRESS
all=$("$KUBECTL" get nodes -l kubernetes.io/os=linux -o go-template='{{range .items}}{{$s := .status}}{{.metadata.name}} {{$s.nodeInfo.architecture}} {{$s.nodeInfo.containerRuntimeVersion}} {{$s.nodeInfo.kubeletVersion}} {{or (index $s.capacity "nvidia.com/gpu") "0"}}{{range $s.addresses}}{{if eq .type "InternalIP"}} {{.address}}{{end}}{{end}}
{{end}}') || say "the right to list nodes"
on() { # on LIMIT NODE ADDRESS COMMAND...
	(limit=$1 NODE=$2 ADDRESS=$3; export NODE ADDRESS; shift 3; timeout "$limit" sh -c "$on_node \"\$@\"" sh "$@")
}
older() { # older A B: whether version A, such as v1.36.2, is older than B
	[ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "${1#v}" "${2#v}" | sort -V | head -n 1)" = "${1#v}" ]
}

wanted=$(echo "$nodes" | tr ',' ' ')
for node in $wanted; do
	echo "$all" | grep -q "^$node " || say "node $node, which --nodes names: see $KUBECTL get nodes"
done
labelled=$(echo "$rendered" | sed -n 's/^ *- {key: \(.*\), operator: In, values: \["\(.*\)"\]}$/\1=\2/p
	s/^ *- {key: \(.*\), operator: Exists}$/\1/p' | while read -r label; do
	"$KUBECTL" get nodes -l "$label" -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'
done)
found=''
while read -r node processor runtime kubelet gpus address; do
	! older "$kubelet" v1.34.0 || say "Kubernetes 1.34 or newer on node $node, which has $kubelet"
	case $runtime in
	docker://* | containerd://1.[0-6].*) say "containerd 1.7 or newer, or CRI-O, on node $node, which has $runtime" ;;
	containerd://1.7.*) echo "note: node $node has $runtime: its configuration must have enable_cdi = true" ;;
	esac
	[ "$gpus" = 0 ] || say "a node $node without the device plugin, which has registered $gpus GPUs with its kubelet: \
docs/migrate.md"
	[ -n "$image" ] || [ "$processor" = "$(go env GOARCH)" ] ||
		say "an image for $processor, the processor of node $node: build a release with make dist, and use --image"
	[ -n "$on_node" ] || continue
	case $runtime in
	containerd://*) ;;
	*) say "containerd on node $node, which has $runtime: use --push" ;;
	esac
	if ! on 20 "$node" "$address" true </dev/null >/dev/null 2>&1; then
		say "a way to run a command on node $node: within 20 s, '$on_node true' did not succeed with NODE=$node and \
ADDRESS=$address"
	elif [ -z "$profile" ] && on 20 "$node" "$address" test -e /proc/driver/nvidia/version </dev/null 2>/dev/null; then
		found="$found $node"
	elif [ -z "$profile" ] && printf '%s\n' $labelled $wanted | grep -qxF "$node"; then
		say "NVIDIA's driver on node $node: its kernel module is not loaded"
	fi
done <<end
$all
end
[ -n "$wanted" ] || wanted=$found
[ -n "$labelled$wanted" ] || say "a node with GPUs: none has a label of Node Feature Discovery, or NVIDIA's driver. Name \
them with --nodes"
installed=$("$HELM" list --namespace $name --short --filter "^$name\$")
others=$("$KUBECTL" get resourceslices --field-selector "spec.driver=$driver" -o name 2>/dev/null) ||
	say "ResourceSlices (resource.k8s.io/v1) in the API server: enable Dynamic Resource Allocation"
[ -n "$installed" ] || [ -z "$others" ] || say "a cluster without another driver $driver, which has published \
$(echo "$others" | wc -l) slices: docs/migrate.md, or another name with -- --set driverName="
"$KUBECTL" auth can-i '*' '*' --all-namespaces >/dev/null 2>&1 || say "the rights of an administrator of the cluster"
stop
# The API server's own answer, such as that something belongs to another release.
answer=$("$HELM" upgrade --install $name $chart --namespace $name --create-namespace "$@" --dry-run=server 2>&1) ||
	say "a cluster that accepts the chart: $answer"
stop
kubernetes=$(echo "$served" | sed -n 's/.*"gitVersion": *"\(v[0-9.]*\).*/\1/p')
! older "$kubernetes" v1.36.2 ||
	echo "note: Kubernetes $kubernetes lacks some of what the driver can do, such as shares before 1.36: docs/versions.md"
if [ -n "$check" ]; then
	echo "Nothing is missing."
	exit
fi

if [ -z "$image" ]; then
	make image PUSH="$push"
fi
if [ -n "$on_node" ]; then
	echo "$all" | while read -r node _ runtime _ _ address; do
		echo "importing the image on node $node"
		case $runtime in
		*-k3s*) set -- k3s ctr ;;
		*) set -- ctr --namespace k8s.io ;;
		esac
		log=$(on 10m "$node" "$address" "$@" images import - <_output/images.tar 2>&1) || { echo "$log" >&2; exit 1; }
	done
fi
label=nvidia.com/gpu.present=true
[ -z "$profile" ] || label=gpu.nvidia.com/sim-profile=$profile
for node in $wanted; do
	"$KUBECTL" label node "$node" --overwrite "$label"
done
"$KUBECTL" get namespace $name >/dev/null 2>&1 || "$KUBECTL" create namespace $name
# The plugin is privileged: NVML opens device nodes that are hidden from other containers.
"$KUBECTL" label namespace $name --overwrite pod-security.kubernetes.io/enforce=privileged
"$HELM" upgrade --install $name $chart --namespace $name --hide-notes "$@"
if "$KUBECTL" --namespace $name rollout status daemonset/$name-kubelet-plugin --timeout=5m &&
	"$HELM" test $name --namespace $name --logs --timeout 2m; then
	exit
fi
echo "The driver is installed, and does not work yet. Its pods, and what each plugin sees (docs/doctor.md):" >&2
"$KUBECTL" --namespace $name get pods -o wide >&2
for pod in $("$KUBECTL" --namespace $name get pods -l app.kubernetes.io/component=kubelet-plugin -o name); do
	"$KUBECTL" --namespace $name exec "$pod" -- "dra-kubelet-plugin${profile:+-sim}" check >&2 || true
done
exit 1

# SPDX-License-Identifier: Apache-2.0
#
# Targets only. Everything longer is a program or a script: hack/dev, hack/golangci-lint, deployments/container, test/cluster, test/kind.

MAKEFLAGS += --no-print-directory
GO ?= go
# The bindings use functions that NVIDIA's headers mark as deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# What several programs need is compiled once if all are built with the same flags: these are also in hack/dev,
# test/cluster/internal/components and deployments/container.
SHARED = -trimpath -gcflags=all=-dwarf=false -tags=netgo,osusergo
# The cluster's program, which also builds what a cluster consists of, and the program behind many of the targets.
CLUSTER = CGO_ENABLED=0 $(GO) build -C test/cluster $(SHARED) -o $(CURDIR)/_output/bin/cluster . && _output/bin/cluster
DEV = CGO_ENABLED=0 $(GO) build $(SHARED) -o _output/bin/dev ./hack/dev && _output/bin/dev
# The Go of releases, which the installed one downloads. Nothing else is built with it: another version compiles again
# what the tests and the test cluster share. RELEASE_GO=local on the command line is the installed one.
RELEASE_GO = go1.26.10
# Directory with the kubectl and helm that test/cluster builds and caches.
TOOLS = $(shell $(CLUSTER) tools)

# Only a KUBECONFIG on the command line of make names a cluster to work on. An exported one may be of any cluster.
GIVEN = $(if $(filter command,$(origin KUBECONFIG)),-kubeconfig "$(KUBECONFIG)")
ROOT = $(if $(GIVEN),,root)
# The pinned kind, built on first use. KIND=kind uses the one on PATH.
export KIND ?= $(GO) tool -modfile=test/kind/tool/go.mod kind

.DEFAULT_GOAL := help
.PHONY: help demo demo-down test beside compute clusters nightly test-rest test-unit test-race test-scale test-dist test-arm64 test-nvidia test-karpenter test-kueue test-next test-vfio test-cluster test-e2e test-oldest test-versions test-survive kind-up kind-down bench timeline compare strongest placement scale why why-scheduler chaos test-chaos conformance fuzz vulncheck build image dist site lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## start a 4-node Kubernetes with simulated GPUs and run every demo (needs root); KUBECONFIG=file runs them on that cluster
	@{ ./hack/prerequisites.sh $(ROOT) $(if $(GIVEN),,&& $(CLUSTER) check); } || { test/kind/offer.sh; exit 1; }
	@$(if $(GIVEN),,_output/bin/cluster build)
	@$(DEV) demo $(GIVEN)

demo-down: ## stop the demo cluster
	@./hack/prerequisites.sh root
	@$(DEV) demo-down

# The tests of the test cluster compare the machine before and after, and the clusters of test-survive take nearly all
# the inotify instances that the kernel allows, so both run alone. The other tests on clusters mostly wait, so what
# computes runs beside them, and gives way to them. Its output comes afterwards, without what succeeded if anything fails.
test: ## run the linter and all tests (needs root)
	@$(MAKE) test-cluster
	@$(MAKE) --jobs=2 beside clusters && cat $(BESIDE) || { grep -vE '^(ok|\?) ' $(BESIDE); false; }
	@$(MAKE) test-survive
	@$(MAKE) test-chaos

BESIDE = _output/logs/beside.log
beside:
	@mkdir -p $(dir $(BESIDE)); nice $(MAKE) compute >$(BESIDE) 2>&1

clusters:
	@$(MAKE) test-e2e

# What make test leaves out because it mostly compiles other programs, or for other machines: an older Kubernetes, a
# release for two processors and two systems, Karpenter, Kueue, the next Kubernetes. On an empty cache of Go these take
# longer than the rest.
nightly: ## the tests that make test leaves out: an older Kubernetes, a release, Karpenter, Kueue, the next Kubernetes (needs root, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)
	@$(MAKE) test-oldest
	@$(MAKE) test-dist
	@$(MAKE) test-karpenter
	@$(MAKE) test-kueue
	@$(MAKE) test-next

# Vet is part of lint, and the packages of test-race are tested once.
compute:
	@$(MAKE) lint
	@$(MAKE) test-rest
	@$(MAKE) test-race
	@$(MAKE) test-nvidia
	@$(MAKE) test-scale
	@GO="$(GO)" ./hack/vfio-test.sh if-possible

# The packages with tests for the race detector.
RACE = ./convert ./internal/controller/... ./internal/plugin/... ./pkg/claims ./pkg/gpu/nvml ./pkg/gpu/passthrough ./test/fleet
# The race detector takes most of the memory and of the time of a test that loads the controller.
NOT_RACE = '^TestMemory$$'

test-unit: ## vet, unit and golden tests of the driver
	@./hack/prerequisites.sh
	$(GO) vet ./...
	$(GO) vet -C test/alerts ./...
	$(GO) vet -C test/allocators ./...
	$(GO) vet -C test/kind/tool ./...
	HELM=$(TOOLS)/helm $(GO) test -vet=off ./...
	$(UNIT_ELSEWHERE)

# The unit tests that test-race leaves.
test-rest:
	@./hack/prerequisites.sh
	HELM=$(TOOLS)/helm $(GO) test -vet=off $$($(GO) list ./... | grep -vxF "$$($(GO) list $(RACE))")
	$(GO) test -vet=off -run $(NOT_RACE) ./internal/controller
	$(UNIT_ELSEWHERE)

# -count=1: go test would not notice changed alerts, which are outside the module of test/alerts.
define UNIT_ELSEWHERE
$(GO) test -C test/alerts -vet=off -count=1 ./...
$(GO) test -C test/allocators -vet=off ./...
$(GO) test -C test/allocators -vet=off -modfile=v1.35.mod ./...
$(GO) test -C test/kind/tool -vet=off ./...
endef

test-race: ## tests of what serves several at a time, with the race detector
	@./hack/prerequisites.sh
	$(GO) test -vet=off -race -skip $(NOT_RACE) $(RACE)

test-scale: ## publish 200 nodes, and place 500 pods of all kinds of claims on them: the small form of make scale
	@./hack/prerequisites.sh
	SCALE_SMALL=1 HELM=$(TOOLS)/helm $(GO) test -count=1 -timeout 1h -run '^TestSmall$$' ./test/scale

test-dist: ## build a release from two clean clones of the commit, and check all that a user gets (needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)
	@./hack/prerequisites.sh dist
	DIST=$(or $(DIST),2) RELEASE_GO=$(RELEASE_GO) $(GO) test -vet=off -count=1 -timeout 2h -run '^TestDist$$' ./deployments/container

# Left out: tests that start programs of the same processor, which the kernel cannot run, and those that an emulated
# processor is too slow for.
test-arm64: ## unit tests of the driver for arm64, under QEMU (needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)
	@./hack/prerequisites.sh arm64
	GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc $(GO) test -vet=off -p 1 \
		-exec "qemu-aarch64 -L /usr/aarch64-linux-gnu" \
		-skip '^(TestBurst|TestCombinedHooks|TestConfigure|TestNVIDIACombinedHooks|TestPowerCut|TestRotationUnderLoad|TestWatchGivesWay)$$' \
		./cmd/... ./convert/... ./kubectl-gpu/... $$($(GO) list ./internal/... ./pkg/... | grep -v supervise)

test-nvidia: ## tests with NVIDIA's own programs of three driver branches, downloaded from Debian (needs no GPU)
	@./hack/prerequisites.sh
	@if packages=$$(hack/nvidia-packages.sh); then \
		NVIDIA_PACKAGES=$$packages $(GO) test -run NVIDIA ./hack/hardware-check ./pkg/gpu/nvml \
			./pkg/sharing/mps/supervise ./simulator/mps ./simulator/smi ./test/libnvml; \
	else \
		echo "SKIPPED: the tests with NVIDIA's own programs, because Debian's non-free packages cannot be had here" >&2; \
	fi

# The module of Karpenter needs a newer Go than this one, which go downloads.
test-karpenter: ## compare Karpenter's simulation of scheduling with the scheduler; downloads a newer Go
	@./hack/prerequisites.sh
	$(GO) build -o _output/bin/dra-controller ./cmd/dra-controller
	DRA_CONTROLLER=$(CURDIR)/_output/bin/dra-controller GOTOOLCHAIN=go1.26.9 $(GO) test -C test/karpenter -count=1 -v ./...

# The programs of Kubernetes are those of the test cluster.
test-kueue: ## run Kueue's own code with the slices and classes of this driver (needs no GPU); compiles Kueue, which takes minutes
	@./hack/prerequisites.sh
	$(CLUSTER) build
	$(GO) build -o _output/bin/dra-controller ./cmd/dra-controller
	PROGRAMS=$$(dirname "$$(readlink $(TOOLS)/kubectl)") DRA_CONTROLLER=$(CURDIR)/_output/bin/dra-controller \
		$(GO) test -C test/kueue -count=1 -v ./...

test-next: ## build with the modules of the next Kubernetes and run the unit tests; downloads a newer Go, and compiles for minutes
	@./hack/prerequisites.sh
	./hack/test-next.sh

test-vfio: ## bind PCI functions to vfio-pci and return them, on an emulated machine with an IOMMU (needs root, qemu-system-x86)
	@./hack/prerequisites.sh root
	@GO="$(GO)" ./hack/vfio-test.sh

test-cluster: ## tests of the test cluster, also that it leaves the machine as it found it (needs root)
	@./hack/prerequisites.sh root
	$(GO) vet -C test/cluster ./...
	$(CLUSTER) build
	$(GO) test -C test/cluster -timeout 2h ./...

test-e2e: ## end-to-end tests on a fresh cluster (needs root), with KUBECONFIG=file on that one; E2E_RUN=pattern selects some
	@./hack/prerequisites.sh $(ROOT)
	@$(DEV) e2e $(GIVEN)

test-oldest: ## some end-to-end tests on the oldest Kubernetes that the driver supports (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) oldest

test-versions: ## the end-to-end tests on every Kubernetes since 1.34; writes docs/start/compatibility.md (needs root); VERSIONS=pattern selects some
	@./hack/prerequisites.sh root
	@$(DEV) versions

test-survive: image ## crash nodes, kill, upgrade, downgrade and remove the driver, on clusters of their own (needs root); E2E_RUN=pattern selects some
	@./hack/prerequisites.sh root
	$(GO) vet -tags e2e ./test/e2e/survive
	@$(DEV) survive

kind-up: image ## start a kind cluster with the images, or load them again; KIND_NODE_IMAGE=image chooses the Kubernetes (needs Docker)
	@test/kind/up.sh

kind-down: ## stop the kind cluster
	@test/kind/down.sh

bench: ## measure the driver and write docs/project/results/benchmarks.md, on a cluster of its own (needs root); BENCH_ROWS=pattern selects some
	@./hack/prerequisites.sh root
	@$(DEV) bench

timeline: ## measure the parts of a pod's start, without and with a claim, and write them to docs/project/results/benchmarks.md (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) timeline

compare: ## measure the driver beside NVIDIA's, in turn, and write docs/project/results/comparison.md (needs root); PEER=file is NVIDIA's program gpu-kubelet-plugin
	@./hack/prerequisites.sh root
	@PEER="$(PEER)" $(DEV) compare

strongest: ## ask for the strongest GPU on random fleets, compare with an oracle and write docs/project/results/strongest.md (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) strongest

placement: ## place pods with kube-scheduler, without and with our scores, and count the GPUs in use; TRACE=folder of a trace (hours) writes docs/project/results/placement.md, PLACEMENT=flags
	@./hack/prerequisites.sh
	@TRACE="$(TRACE)" PLACEMENT="$(PLACEMENT)" $(DEV) placement

scale: ## publish up to 5,000 nodes, place pods, restart all plugins at once, and write docs/project/results/scale.md: hours; SCALE=flags
	@./hack/prerequisites.sh
	@SCALE="$(SCALE)" $(DEV) scale

why: ## ask why 2,000 random pods wait, judge each answer with the scheduler's allocator, and write docs/project/results/why-judged.md; WHY_SEED=number varies them
	@./hack/prerequisites.sh
	WHY_CLAIMS=2000 WHY_PAGE=../../docs/project/results/why-judged.md $(GO) test -count=1 -timeout 2h -v -run 'TestRandomClaims$$' ./internal/why

why-scheduler: ## put 2,000 answers to why random pods wait to a real scheduler, and less than 300 of them say, and write docs/project/results/why-judged.md; WHY_SCHEDULER=number of them (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) why

# go test replays what is in testdata/fuzz, so the unit tests of CI do.
fuzz: ## fuzz each target for FUZZ_TIME, by default 60s; FUZZ=pattern selects some, such as pkg/cdi; what fails stays in testdata/fuzz
	@./hack/prerequisites.sh
	@GO="$(GO)" ./hack/fuzz.sh "$(or $(FUZZ_TIME),60s)" "$(FUZZ)"

vulncheck: ## compare the programs with Go's database of vulnerabilities, as releases are built; VULNDB=URL of a copy of it
	@./hack/prerequisites.sh
	GOTOOLCHAIN=$(RELEASE_GO) $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(if $(VULNDB),-db "$(VULNDB)") ./cmd/... ./kubectl-gpu

conformance: ## test what Kubernetes expects of any DRA driver, with this one, on a cluster of its own: three minutes (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) conformance

chaos: ## break a cluster in every known way while pods come and go, and judge what is seen; CHAOS_FOR=1h, CHAOS_SEED=number (needs root)
	@./hack/prerequisites.sh root
	@$(DEV) chaos

# One fault of each kind. Only what makes no progress for ten minutes waits for too long: machines differ.
test-chaos: ## make chaos as in CI: each fault once (needs root)
	@$(MAKE) chaos CHAOS_FOR=1s CHAOS_FLAGS="-every 2s -margin 10m"

build: ## compile the programs into _output/bin
	@./hack/prerequisites.sh
	$(GO) build -trimpath -o _output/bin/ ./cmd/... ./simulator/cmd/...
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$$(cat VERSION)" -o _output/bin/ ./kubectl-gpu

image: ## build both images as one OCI archive, _output/images.tar, without Docker; PUSH=registry/path also pushes them
	@./hack/prerequisites.sh
	@$(GO) run ./deployments/container $(if $(PUSH),-push $(PUSH))

dist: ## build a release into _output/dist, REGISTRY=registry/path: images for amd64 and arm64, chart, kubectl-gpu, notes, SBOM; VERSION=v0.2.0, else that of the file VERSION without -dev; PUSH=1 pushes it
	@./hack/prerequisites.sh dist
	@GOTOOLCHAIN=$(RELEASE_GO) $(GO) run ./deployments/container -version "$(VERSION)" -release "$(REGISTRY)" $(if $(PUSH),-push "$(REGISTRY)")

site: ## the pages of docs as a website in _output/site; a broken link fails (needs mkdocs and pymdownx)
	@command -v mkdocs >/dev/null || { echo "mkdocs is missing: apt-get install mkdocs python3-pymdownx" >&2; exit 1; }
	mkdocs build -f hack/site/mkdocs.yml

lint: ## go vet, helm lint, golangci-lint on every Go module, vale on the pages for users, actionlint
	@./hack/prerequisites.sh
	$(GO) vet ./...
	$(GO) vet -tags e2e ./test/e2e/...
	$(GO) vet -tags guest ./pkg/gpu/passthrough
	$(TOOLS)/helm lint --strict deployments/helm/gpu-dra-driver
	GO="$(GO)" ./hack/golangci-lint/run.sh
	GO="$(GO)" ./hack/vale/run.sh
	$$(GO="$(GO)" ./hack/tool.sh actionlint)

clean: ## remove what was built here; the cache of the cluster and of linters stays
	rm -rf _output

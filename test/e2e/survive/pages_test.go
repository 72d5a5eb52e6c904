//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// block is what the test does with a block of shell commands on a page.
type block struct {
	page, begin string
	skip        string   // why the commands are not run
	replace     []string // placeholders and their values
	want        string   // in the output
	upgrade     bool     // the driver is installed already: its plugins are replaced, and its values stay
}

// startPages are the pages with the first commands of a user.
var startPages = []string{"README.md", "docs/start/quick-start.md", "docs/start/install.md",
	"docs/start/try-without-gpus.md"}

// startBlocks are the blocks of the start pages, in the order in which they run.
var startBlocks = []block{
	{page: "docs/start/try-without-gpus.md", begin: "deployments/install.sh --on-node 'docker exec",
		replace: []string{"kind-worker", "node-3", "dgx-h100", "dgx-h100 -- --set controller.replicas=1"},
		want:    "GPU 0: NVIDIA "},
	{page: "docs/start/quick-start.md", begin: "git clone", want: "Nothing is missing.", upgrade: true},
	{page: "docs/start/try-without-gpus.md", begin: "simctl()", want: "gpu-52-00-0"},
	{page: "docs/start/quick-start.md", begin: "kubectl delete pod hello-gpu",
		replace: []string{" A B ", " node-1 node-3 "}, want: `release "gpu-dra-driver" uninstalled`},
	{page: "docs/start/install.md", begin: "kubectl create namespace", replace: []string{" NODE ", " node-3 ",
		"registry.example.com/team", "localhost", "helm install", "helm install --set simulate.enabled=true"},
		want: "STATUS: deployed"},
	{page: "docs/start/install.md", begin: "kubectl -n gpu-dra-driver rollout", want: "GPU 0: NVIDIA "},
	{page: "docs/start/install.md", begin: "sed 's#localhost/#",
		replace: []string{"registry.example.com/team", "localhost"}, want: `namespace "demo-one-gpu" deleted`},
	{page: "docs/start/install.md", begin: "helm uninstall", want: `release "gpu-dra-driver" uninstalled`},
	{page: "docs/start/try-without-gpus.md", begin: "helm install", replace: []string{"NODE", "node-3 --overwrite"},
		want: "STATUS: deployed"},

	{page: "README.md", begin: "git clone", skip: "quick-start.md has the commands"},
	{page: "README.md", begin: "make demo", skip: "CI runs them"},
	{page: "docs/start/install.md", begin: "git clone", skip: "there is no registry; without one: quick-start.md"},
	{page: "docs/start/install.md", begin: "make image PUSH", skip: "there is no registry"},
	{page: "docs/start/install.md", begin: "make dist", skip: "there is no registry"},
	{page: "docs/start/try-without-gpus.md", begin: "cd test/cluster", skip: "TestAFleetComesAndGoes runs a fleet"},
	{page: "docs/start/try-without-gpus.md", begin: "kubectl apply -f my-claims.yaml", skip: "it is the reader's file"},
}

var shellBlock = regexp.MustCompile("(?s)\n```sh\n(.*?)\n```")

// testStartPages runs the commands of the start pages as a user does, on a cluster whose nodes do not have the image:
// git, ssh and docker are replaced, and placeholders have values.
func (s *suite) testStartPages(t *testing.T) {
	dir := t.TempDir()
	repository, err := filepath.Abs("../../..")
	must(t, err)
	for name, script := range map[string]string{
		"git": "ln -s " + repository + " gpu-dra-driver\n",
		"docker": `[ "$1 $2" = "exec -i" ] || exit 2
node=$3; shift 3
exec "` + *program + `" exec --name ` + s.name + ` "$node" -- "$@"
`,
		// As ssh, it gives the words to a shell.
		"ssh": `address=${1#root@}; shift
node=$(kubectl get nodes -o go-template='{{range .items}}{{$n := .metadata.name}}{{range .status.addresses}}` +
			`{{.address}} {{$n}}{{"\n"}}{{end}}{{end}}' | sed -n "s/^$address //p" | head -n 1)
exec "` + *program + `" exec --name ` + s.name + ` "$node" -- sh -c "$*"
`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	environment := append(os.Environ(), "KUBECONFIG="+s.kubeconfig,
		"PATH="+dir+":"+filepath.Dir(s.tool(t, "kubectl"))+":"+os.Getenv("PATH"))

	texts := s.blocksOf(t, repository)
	for i, b := range startBlocks {
		if b.skip != "" {
			continue
		}
		t.Run(b.page+": "+b.begin, func(t *testing.T) {
			before := s.plugins(t)
			text := strings.NewReplacer(append(slices.Clone(b.replace), `"ubuntu:24.04"`, s.image,
				"--timeout=2m", "--timeout=10m", "--timeout 2m", "--timeout 10m")...).Replace(texts[i])
			for _, p := range before {
				if p.Spec.NodeName == "node-3" {
					text = strings.ReplaceAll(text, "PLUGIN", p.Name)
				}
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
			cmd.Env, cmd.Dir = environment, repository
			if strings.HasPrefix(text, "git clone") {
				cmd.Dir = dir
			}
			output, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(output), b.want) {
				t.Fatalf("got %v and\n%s\nwant %q of\n%s", err, output, b.want, text)
			}
			if b.upgrade {
				s.upgraded(t, before)
			}
		})
	}
	must(t, s.WaitRollout(t.Context(), soon, release)) // of the last installation
}

// plugins returns the plugins that are not being deleted.
func (s *suite) plugins(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := s.Pods(t.Context(), release, kube.PluginLabels)
	must(t, err)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// upgraded checks that each plugin was replaced, because an image of the same tag has been imported, and that the
// controller has the number of replicas of the first installation.
func (s *suite) upgraded(t *testing.T, before []corev1.Pod) {
	t.Helper()
	after := s.plugins(t)
	if len(before) != len(s.profiles) || len(after) != len(s.profiles) {
		t.Errorf("got %d plugins, then %d, want one on each of %d nodes", len(before), len(after), len(s.profiles))
	}
	for _, p := range after {
		if slices.ContainsFunc(before, func(old corev1.Pod) bool { return old.UID == p.UID }) {
			t.Errorf("%s is still there", p.Name)
		}
	}
	var controller appsv1.Deployment
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: release, Name: release + "-controller"}, &controller))
	if got := *controller.Spec.Replicas; got != 1 {
		t.Errorf("got %d replicas after the second run, want the 1 of the first", got)
	}
}

// blocksOf returns the commands of each of startBlocks, and fails if a page has others.
func (s *suite) blocksOf(t *testing.T, repository string) []string {
	t.Helper()
	texts := make([]string, len(startBlocks))
	for _, page := range startPages {
		content, err := os.ReadFile(filepath.Join(repository, page))
		must(t, err)
		for _, found := range shellBlock.FindAllStringSubmatch(string(content), -1) {
			i := slices.IndexFunc(startBlocks, func(b block) bool {
				return b.page == page && strings.HasPrefix(found[1], b.begin)
			})
			if i < 0 || texts[i] != "" {
				t.Fatalf("%s: startBlocks must say once what to do with\n%s", page, found[1])
			}
			texts[i] = found[1]
		}
	}
	if i := slices.Index(texts, ""); i >= 0 {
		t.Fatalf("%s has no block that begins with %q", startBlocks[i].page, startBlocks[i].begin)
	}
	return texts
}

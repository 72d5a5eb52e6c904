// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
)

func TestOptionsReachTheComponents(t *testing.T) {
	o := Options{
		FeatureGates:  map[string]bool{"B": false, "A": true},
		RuntimeConfig: map[string]string{"resource.k8s.io/v1beta2": "true", "api/all": "false"},
	}
	var got strings.Builder
	for _, s := range Spec("/d", components.Dirs{}, o).Steps {
		for _, argument := range s.Command {
			if strings.HasPrefix(argument, "--feature-gates") || strings.HasPrefix(argument, "--runtime-config") {
				got.WriteString(s.Name + " " + argument + "\n")
			}
		}
	}
	const want = `kube-apiserver --feature-gates=A=true,B=false
kube-apiserver --runtime-config=api/all=false,resource.k8s.io/v1beta2=true
kube-controller-manager --feature-gates=A=true,B=false
kube-scheduler --feature-gates=A=true,B=false
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestTheRequestsOfSomeUsersAreLogged(t *testing.T) {
	spec := Spec("/d", components.Dirs{}, Options{Audit: []string{"system:serviceaccount:a:b"}})
	const want = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],` +
		`"rules":[{"level":"Metadata","users":["system:serviceaccount:a:b"]},{"level":"None"}]}`
	if got := spec.Files[auditPolicy]; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, s := range spec.Steps {
		if got := slices.Contains(s.Command, "--audit-policy-file="+auditPolicy); got != (s.Name == "kube-apiserver") {
			t.Errorf("%s: got %v", s.Name, s.Command)
		}
	}
}

func TestTheSchedulerGetsItsConfiguration(t *testing.T) {
	for _, row := range []struct {
		name  string
		o     Options
		flags string // of those that differ
		file  string
	}{
		{"none", Options{}, "--kubeconfig=/run/gpu-dra-cluster/machine/pki/scheduler.conf --leader-elect=false", ""},
		{"one of the user's", Options{SchedulerConfig: "kind: X\n"}, "--config=/var/scheduler-config.yaml",
			"kind: X\n"},
		{"more to log", Options{SchedulerConfig: "kind: X\n", SchedulerVModule: "schedule_one=10"},
			"--config=/var/scheduler-config.yaml --vmodule=schedule_one=10", "kind: X\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			spec := Spec("/d", components.Dirs{}, row.o)
			var flags []string
			for _, a := range spec.Steps[len(spec.Steps)-1].Command {
				if slices.ContainsFunc([]string{"--kubeconfig", "--leader-elect", "--config", "--vmodule"},
					func(f string) bool { return strings.HasPrefix(a, f+"=") }) {
					flags = append(flags, a)
				}
			}
			if got := strings.Join(flags, " "); got != row.flags {
				t.Errorf("got flags %s, want %s", got, row.flags)
			}
			if got := spec.Files[schedulerConfig]; got != row.file {
				t.Errorf("got file %q, want %q", got, row.file)
			}
		})
	}
}

func TestCompleteSchedulerConfig(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\n"
	const kind = "kind: KubeSchedulerConfiguration\n"
	for _, row := range []struct{ name, text, want, err string }{
		{"missing fields are added", head + kind + "percentageOfNodesToScore: 100\n",
			head + "clientConnection:\n  kubeconfig: /run/gpu-dra-cluster/machine/pki/scheduler.conf\n" + kind +
				"leaderElection:\n  leaderElect: false\npercentageOfNodesToScore: 100\n", ""},
		{"fields for another cluster are replaced, others stay",
			head + "clientConnection:\n  kubeconfig: /k\n  qps: 5\n" + kind + "leaderElection:\n  leaderElect: true\n",
			head + "clientConnection:\n  kubeconfig: /run/gpu-dra-cluster/machine/pki/scheduler.conf\n  qps: 5\n" +
				kind + "leaderElection:\n  leaderElect: false\n", ""},
		{"another kind is refused", "apiVersion: v1\nkind: Pod\n", "",
			`want kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, got kind Pod of "v1"`},
		{"an empty file is refused", "", "",
			`want kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, got kind <nil> of ""`},
		{"a section that is none is refused", head + kind + "leaderElection: no thanks\n", "",
			"leaderElection: want fields, got no thanks"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := CompleteSchedulerConfig([]byte(row.text))
			if message := fmt.Sprint(err); got != row.want || (err != nil || row.err != "") && message != row.err {
				t.Errorf("got\n%s\n%v, want\n%s\n%s", got, err, row.want, row.err)
			}
		})
	}
}

func TestWithoutOptionsTheDefaultsStay(t *testing.T) {
	for _, s := range Spec("/d", components.Dirs{}, Options{}).Steps {
		if slices.ContainsFunc(s.Command, func(a string) bool {
			return strings.HasPrefix(a, "--feature-gates") || strings.HasPrefix(a, "--runtime-config") ||
				strings.HasPrefix(a, "--audit")
		}) {
			t.Errorf("%s: got %v", s.Name, s.Command)
		}
	}
}

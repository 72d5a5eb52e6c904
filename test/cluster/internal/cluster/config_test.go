// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestNewConfig(t *testing.T) {
	for _, row := range []struct {
		name                   string
		nodes                  int
		profiles, gates, areas []string
		want                   string
	}{
		{
			"nothing but nodes", 1, nil, nil, nil,
			`{"nodes":1}`,
		},
		{
			"everything", 2, []string{"node-1=dgx-h100", "node-2=t4-x2"}, []string{"A=true", "B=false"},
			[]string{"g/v1=true"},
			`{"nodes":2,"profiles":{"node-1":"dgx-h100","node-2":"t4-x2"},"featureGates":{"A":true,"B":false},"runtimeConfig":{"g/v1":"true"}}`,
		},
		{
			"the same thing twice", 1, []string{"node-1=a", "node-1=a"}, nil, nil,
			`{"nodes":1,"profiles":{"node-1":"a"}}`,
		},
		{
			"no nodes", 0, nil, nil, nil,
			`nodes: want 1 to 200, got 0`,
		},
		{
			"a profile for a node that is not there", 2, []string{"node-3=a"}, nil, nil,
			`profile: there is no node node-3 among 2`,
		},
		{
			"a profile that cannot be a label", 1, []string{"node-1=a b"}, nil, nil,
			`profile: "a b" of node-1 cannot be the value of a label`,
		},
		{
			"two profiles for a node", 1, []string{"node-1=a", "node-1=b"}, nil, nil,
			`profile: node-1 is both "a" and "b"`,
		},
		{
			"a profile without a node", 1, []string{"dgx-h100"}, nil, nil,
			`profile: "dgx-h100": want KEY=VALUE`,
		},
		{
			"every problem is reported", 300, nil, []string{"A=maybe", "B=perhaps"}, []string{"=true"},
			"nodes: want 1 to 200, got 300\n" +
				"runtime-config: \"=true\": want KEY=VALUE\n" +
				"feature-gates: A is \"maybe\", want true or false\n" +
				"feature-gates: B is \"perhaps\", want true or false",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			config, err := NewConfig(row.nodes, row.profiles, row.gates, row.areas)
			got := fmt.Sprint(err)
			if err == nil {
				data, err := json.Marshal(config)
				if err != nil {
					t.Fatal(err)
				}
				got = string(data)
			}
			if got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

func TestCheckName(t *testing.T) {
	for _, row := range []struct {
		name, cluster string
		valid         bool
	}{
		{"a word", "dev", true},
		{"a hyphen inside", "my-2nd", true},
		{"32 characters", strings.Repeat("a", 32), true},
		{"33 characters", strings.Repeat("a", 33), false},
		{"nothing", "", false},
		{"a path", "../etc", false},
		{"a hyphen in front", "-x", false},
		{"upper case", "Dev", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := CheckName(row.cluster) == nil; got != row.valid {
				t.Errorf("got valid=%v, want %v", got, row.valid)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	p := Place{State: t.TempDir(), Name: "x"}
	if _, err := p.get(); !errors.Is(err, ErrNotUp) {
		t.Errorf("got %v before anything, want ErrNotUp", err)
	}
	if err := os.Mkdir(p.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	r := record{Config: Config{Nodes: 2}, Phase: starting}
	if err := p.put(r); err != nil {
		t.Fatal(err)
	}
	if _, err := p.up(); !errors.Is(err, ErrNotUp) {
		t.Errorf("got %v while starting, want ErrNotUp", err)
	}
	r.Phase = running
	if err := p.put(r); err != nil {
		t.Fatal(err)
	}
	got, err := p.up()
	if err != nil {
		t.Fatal(err)
	}
	if want := "control-plane node-1 node-2"; strings.Join(got.machines(), " ") != want {
		t.Errorf("got machines %v, want %s", got.machines(), want)
	}
	if got := strings.Join(Names(p.State), " "); got != "x" {
		t.Errorf("got names %s, want x", got)
	}
}

func TestLock(t *testing.T) {
	p := Place{State: t.TempDir(), Name: fmt.Sprintf("lock%d", os.Getpid())}
	unlock, err := p.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.lock(ctx); err == nil {
		t.Error("got a second lock while the first was held")
	}
	unlock()
	again, err := p.lock(t.Context())
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	again()
}

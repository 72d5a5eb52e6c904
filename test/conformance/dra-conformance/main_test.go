// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/conformance"
)

func TestParse(t *testing.T) {
	claim := filepath.Join(t.TempDir(), "claim.yaml")
	write := func(text string) {
		if err := os.WriteFile(claim, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ name, args, claim, says string }{
		{"a driver", "-driver a.example.com", "", ""},
		{"no driver", "", "", "-driver: want the name of the driver"},
		{"an argument", "-driver a more", "", `unknown argument "more"`},
		{"another format", "-driver a -o xml", "", "-o xml: want text or json"},
		{"no JSON", "-driver a -accepts text", "", "cannot unmarshal"},
		{"a claim", "-driver a -claim " + claim, "devices: {requests: [{name: a}]}", ""},
		{"a claim without a request", "-driver a -claim " + claim, "devices: {}",
			"devices.requests: want at least one"},
		{"a claim with an unknown field", "-driver a -claim " + claim, "device: {}", `unknown field "device"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			write(test.claim)
			config, _, err := parse(strings.Fields(test.args), io.Discard)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
			if err == nil && config.Class != config.Driver {
				t.Errorf("got class %q, want that of the driver", config.Class)
			}
		})
	}
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got, want := len(strings.Fields(out.String())), len(conformance.IDs()); got != want {
		t.Errorf("got %d IDs, want %d", got, want)
	}
	if err := run(t.Context(), []string{"-h"}, &out, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v, want %v", err, flag.ErrHelp)
	}
	err := run(t.Context(), []string{"-driver", "a", "-kubeconfig", "/nowhere"}, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("got %v, want an error about the kubeconfig", err)
	}
}

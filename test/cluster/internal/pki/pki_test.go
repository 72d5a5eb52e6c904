// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestIssue(t *testing.T) {
	ca, err := NewAuthority("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("test-ca") // the same name, another key
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(Subject{
		CommonName:    "system:node:node-1",
		Organizations: []string{"system:nodes"},
		IPs:           []net.IP{net.ParseIP("10.77.0.11")},
		DNSNames:      []string{"node-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatalf("certificate and key: %v", err)
	}
	for _, row := range []struct {
		name    string
		trusted *Authority
		host    string
		usage   x509.ExtKeyUsage
		want    string
	}{
		{"a server under its name", ca, "node-1", x509.ExtKeyUsageServerAuth, "ok"},
		{"a server under its address", ca, "10.77.0.11", x509.ExtKeyUsageServerAuth, "ok"},
		{"a client", ca, "", x509.ExtKeyUsageClientAuth, "ok"},
		{"a server under another name", ca, "node-2", x509.ExtKeyUsageServerAuth, "refused"},
		{"another authority's", other, "node-1", x509.ExtKeyUsageServerAuth, "refused"},
		{"for signing code", ca, "", x509.ExtKeyUsageCodeSigning, "refused"},
	} {
		t.Run(row.name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(row.trusted.CertPEM())
			_, err := both.Leaf.Verify(x509.VerifyOptions{
				Roots: roots, DNSName: row.host, KeyUsages: []x509.ExtKeyUsage{row.usage},
			})
			got := "ok"
			if err != nil {
				got = "refused"
			}
			if got != row.want {
				t.Errorf("got %s (%v), want %s", got, err, row.want)
			}
		})
	}
	if got := both.Leaf.Subject.String(); got != "CN=system:node:node-1,O=system:nodes" {
		t.Errorf("got subject %s", got)
	}
}

func TestWriter(t *testing.T) {
	ca, err := NewAuthority("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	w := Writer{Dir: t.TempDir(), CA: ca, Server: "https://10.77.0.1:6443"}
	w.Authority("ca", ca)
	w.Trust("trusted", ca)
	w.SigningKey("signing")
	w.Pair("server", ca, Subject{CommonName: "server"})
	w.Kubeconfig("user", Subject{CommonName: "user"})
	if w.Err != nil {
		t.Fatal(w.Err)
	}
	files, err := filepath.Glob(filepath.Join(w.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s %o\n", info.Name(), info.Mode().Perm())
	}
	const want = "ca.crt 600\nca.key 600\nserver.crt 600\nserver.key 600\nsigning.key 600\nsigning.pub " +
		"600\ntrusted.crt 600\nuser.conf 600\n"
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	for _, name := range []string{"ca", "server"} {
		if _, err := tls.LoadX509KeyPair(filepath.Join(w.Dir, name+".crt"),
			filepath.Join(w.Dir, name+".key")); err != nil {
			t.Errorf("load %s: %v", name, err)
		}
	}
}

func TestWriterStopsAtTheFirstError(t *testing.T) {
	ca, err := NewAuthority("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	w := Writer{Dir: filepath.Join(t.TempDir(), "missing"), CA: ca}
	w.Trust("first", ca)
	first := w.Err
	w.SigningKey("second")
	if first == nil || w.Err != first { //nolint:errorlint // it is that one
		t.Errorf("got %v after %v, want the first error kept", w.Err, first)
	}
}

func TestKubeconfig(t *testing.T) {
	data, err := Kubeconfig("c", "https://127.0.0.1:1", []byte("CA"), Pair{Cert: []byte("CERT"), Key: []byte("KEY")})
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://127.0.0.1:1
  name: c
contexts:
- context:
    cluster: c
    user: c
  name: c
current-context: c
kind: Config
users:
- name: c
  user:
    client-certificate-data: Q0VSVA==
    client-key-data: S0VZ
`
	if got := string(data); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var parsed map[string]any
	if err := yaml.Unmarshal(data, &parsed); err != nil {
		t.Error(err)
	}
}

func TestKubeconfigIsReadBack(t *testing.T) {
	want := Access{Server: "https://127.0.0.1:1", CA: []byte("ca"), Client: Pair{Cert: []byte("cert"),
		Key: []byte("key")}}
	data, err := Kubeconfig("name", want.Server, want.CA, want.Client)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseKubeconfig(data)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := ParseKubeconfig([]byte("clusters: []")); err == nil {
		t.Error("a kubeconfig without a cluster: got no error")
	}
}

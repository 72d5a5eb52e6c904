// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// probeInterval is short, because a start waits for several conditions in a row.
const probeInterval = 25 * time.Millisecond

// prober waits for the conditions of a Step.
type prober struct {
	client *http.Client
	done   map[string]chan struct{}
}

func newProber(done map[string]chan struct{}) prober {
	roots := x509.NewCertPool()
	if ca, err := os.ReadFile(CA); err == nil {
		roots.AppendCertsFromPEM(ca)
	}
	return prober{
		client: &http.Client{
			Timeout:   10 * time.Second, // of a request, which is sent again
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
		},
		done: done,
	}
}

// wait returns when the condition holds. Its caller has no timeout; the start of the cluster has one.
func (p prober) wait(condition string) {
	if name, ok := strings.CutPrefix(condition, "step:"); ok {
		<-p.done[name]
		return
	}
	for !p.holds(condition) {
		time.Sleep(probeInterval)
	}
}

func (p prober) holds(condition string) bool {
	if path, ok := strings.CutPrefix(condition, "unix:"); ok {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}
	response, err := p.client.Get(condition)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

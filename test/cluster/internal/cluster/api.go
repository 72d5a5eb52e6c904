// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/pki"
)

// requestTimeout limits a request, not a wait: it is sent again.
const requestTimeout = 30 * time.Second

// api is a minimal client for the requests of a start. A client library would be most of this program's size and
// compile time.
type api struct {
	server string
	client *http.Client
}

func newAPI(server string, ca []byte, admin pki.Pair) (*api, error) {
	cert, err := tls.X509KeyPair(admin.Cert, admin.Key)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{
		server: server,
		client: &http.Client{
			Timeout: requestTimeout,
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
			},
		},
	}, nil
}

// get decodes the response into value, which may be nil.
func (a *api) get(ctx context.Context, path string, value any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, response.Status)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(body, value)
}

// ready returns nil once the API server is ready.
func (a *api) ready(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }

// usable returns nil once pods can be created: without its service account, the API server rejects pods of the default
// namespace.
func (a *api) usable(ctx context.Context) error {
	return a.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}

// readyNodes returns the names of the nodes with the condition Ready.
func (a *api) readyNodes(ctx context.Context) ([]string, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := a.get(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, err
	}
	var names []string
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				names = append(names, n.Metadata.Name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// booted returns nil once the node is ready after the boot with that ID.
func (a *api) booted(ctx context.Context, name, bootID string) error {
	var node struct {
		Status struct {
			NodeInfo   struct{ BootID string }
			Conditions []struct{ Type, Status string }
		}
	}
	if err := a.get(ctx, "/api/v1/nodes/"+name, &node); err != nil {
		return err
	}
	if got := node.Status.NodeInfo.BootID; got != bootID {
		return fmt.Errorf("it has not reported its boot yet: it has %s, last seen is %s", bootID, got)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		}
	}
	return errors.New("not ready")
}

// patience is how long a wait goes on while what is missing stays the same. Machines differ, and some are emulated, so
// it is generous, and the whole wait has no limit.
const patience = 10 * time.Minute

// errStuck means that what a wait waits for has not come nearer for the time of patience.
var errStuck = errors.New("nothing has changed for " + patience.String())

// poll calls check until it returns nil. It returns an error when a machine ends, ctx ends, or check returns no new
// error for the time of patience.
func poll(ctx context.Context, failed <-chan error, check func(context.Context) error) error {
	seen, moved := map[string]bool{}, time.Now()
	for {
		last := check(ctx)
		if last == nil {
			return nil
		}
		if text := last.Error(); !seen[text] {
			seen[text], moved = true, time.Now()
		}
		if time.Since(moved) >= patience {
			return fmt.Errorf("%w: %w", errStuck, last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-time.After(30 * time.Millisecond):
		}
	}
}

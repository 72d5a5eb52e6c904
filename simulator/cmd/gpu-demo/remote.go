// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// The stand-in for Lupine speaks its protocol as far as the driver looks at it: HTTP/2 without TLS, at Lupine's port,
// with the header of LUPINE_SESSION in the first request. The answer is what show prints in the server's container.
const (
	enginePort    = "14833"
	sessionHeader = "x-lupine-session"
)

// withoutTLS is HTTP/2 by prior knowledge.
func withoutTLS() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// engine is the server, until the context ends.
func engine(ctx context.Context) error {
	server := &http.Server{Addr: ":" + enginePort, Protocols: withoutTLS(), ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := show(r.Context(), hostDevices, w); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			if r.URL.Path == "/stay" {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		})}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// showRemote prints what the container of the server sees. With --stay it then holds the connection until SIGTERM, and
// fails if that ends. Without a remote GPU it says so.
func showRemote(ctx context.Context, args []string, out io.Writer) error {
	stay := len(args) == 1 && args[0] == "--stay"
	if len(args) > 0 && !stay {
		return errUsage
	}
	address := os.Getenv("LUPINE_SERVER")
	if address == "" {
		_, err := fmt.Fprintln(out, "no remote GPU in this container")
		return err
	}
	path := "/"
	if stay {
		path = "/stay"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	if token := os.Getenv("LUPINE_SESSION"); token != "" {
		request.Header.Set(sessionHeader, token)
	}
	client := &http.Client{Transport: &http.Transport{Protocols: withoutTLS()}}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("remote GPU: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("remote GPU: %s", answer.Status)
	}
	_, err = io.Copy(out, answer.Body)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil && stay {
		err = io.EOF
	}
	if err != nil {
		return fmt.Errorf("remote GPU: %w", err)
	}
	return nil
}

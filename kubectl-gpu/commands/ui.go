// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

func uiCommand(p *plugin) *cobra.Command {
	var f filter
	var port uint16
	var plugins string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page on this machine that shows the GPUs of the cluster, live.",
		Long: "Serve a page on 127.0.0.1 that shows the GPUs of the cluster, live, until it is interrupted. Nothing " +
			"is exposed in the cluster. The URL has a token against other users of this machine: open it as it is " +
			"printed.",
		Example: "  kubectl gpu ui\n  kubectl gpu ui --port 8081",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.ui(cmd.Context(), f, plugins, port) },
	}
	f.addDriver(cmd)
	addPlugins(cmd, &plugins)
	cmd.Flags().Uint16Var(&port, "port", 0, "Port of the page; 0 is a random one.")
	return cmd
}

// readHeaderTimeout is how long a client may take to send a request.
const readHeaderTimeout = 10 * time.Second

func (p *plugin) ui(ctx context.Context, f filter, plugins string, port uint16) error {
	if err := p.connect(); err != nil {
		return err
	}
	s := p.read(ctx, cluster.Slices, cluster.Claims, cluster.Nodes)
	b := newBoard(f, p.namespace)
	b.podNamespace = readPendingPods(ctx, p.client, s, p.namespace)
	if err := b.update(s); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go b.follow(ctx, p.client, s)

	of := newReasons(func(ctx context.Context) *cluster.Snapshot {
		return schedule.Read(ctx, read.Reader{Client: p.client, Namespace: p.namespace}, "", nil, nil)
	})
	page := newPageServer(b, of, &usage{client: p.client, plugins: plugins}, listener.Addr().String(), rand.Text())
	server := &http.Server{Handler: page, ReadHeaderTimeout: readHeaderTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the error is that of the listener
	defer stop()
	fmt.Fprintf(p.Out, "Open %s\nInterrupt with Ctrl-C.\n", page.url())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

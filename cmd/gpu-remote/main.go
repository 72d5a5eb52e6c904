// SPDX-License-Identifier: Apache-2.0

// gpu-remote gives pods GPUs of other nodes: it stands before the server of an engine, and it is the kubelet plugin of
// the clients' nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/cli"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/internal/remote/node"
	"github.com/gpudra/gpu-dra-driver/internal/remote/serve"
)

func main() { os.Exit(cli.Run(command())) }

func command() *cobra.Command {
	cmd := &cobra.Command{Use: "gpu-remote", Short: "Gives pods GPUs of other nodes.", SilenceUsage: true}
	cmd.AddCommand(serveCommand(), nodeCommand(), &cobra.Command{
		Use:   "copy PATTERN... DIRECTORY",
		Short: "Copies files into a directory, for images without a program for that.",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return copyFiles(args[:len(args)-1], args[len(args)-1])
		},
	})
	return cmd
}

func serveCommand() *cobra.Command {
	s := &serve.Server{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var listen, engine, pod string
	cmd := &cobra.Command{
		Use:   "serve --engine ENGINE --pod-uid UID -- COMMAND...",
		Short: "Runs the server of an engine where only admitted sessions reach it.",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if pod == "" {
				return errors.New("--pod-uid is required: the UID of this pod")
			}
			s.Pod = types.UID(pod)
			return runServer(cmd.Context(), s, engine, listen, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&engine, "engine", "lupine", "engine whose server the command is")
	f.StringVar(&pod, "pod-uid", os.Getenv("POD_UID"), "UID of this pod; default: the variable POD_UID")
	f.StringVar(&s.Certificates, "certificates", "/etc/gpu-remote", "directory with tls.crt, tls.key and ca.crt: the "+
		"Secret "+remote.ServerSecret)
	f.StringVar(&listen, "listen", fmt.Sprint(":", remote.ServerPort), "address for nodes and for the controller")
	return cmd
}

// drainTime is how long connections stay after SIGTERM, for an engine that lets its clients finish. A pod has 30 s.
const drainTime = 20 * time.Second

// runServer runs the engine until it ends. At SIGTERM the engine can finish.
func runServer(ctx context.Context, s *serve.Server, engine, listen string, command []string) error {
	e, err := remote.EngineOf(engine)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	running, err := serve.Start(ctx, command, e.Port())
	if err != nil {
		return fmt.Errorf("start engine %s: %w", engine, err)
	}
	listener := net.ListenConfig{Control: remote.LimitLoss, KeepAliveConfig: remote.Keepalive}
	l, err := listener.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	s.Dial = running.Dial
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	ended := make(chan error, 1)
	go func() { ended <- running.Wait() }()
	select {
	case err := <-served:
		if err != nil {
			return err
		}
		time.AfterFunc(drainTime, s.End) // an engine may end only after its clients
		return engineEnded(ctx, <-ended)
	case err := <-ended:
		return engineEnded(ctx, err)
	}
}

// engineEnded returns the error of an engine that was not told to end.
func engineEnded(ctx context.Context, err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	select {
	case <-ctx.Done():
		return nil
	default:
		return fmt.Errorf("the engine has ended: %w", err)
	}
}

func nodeCommand() *cobra.Command {
	var c node.Config
	var kubeconfig, listen, hook string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Prepares claims for remote GPUs, and relays the connections of their containers.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			config, err := apiserver.Config(kubeconfig)
			if err != nil {
				return err
			}
			if c.Client, err = kubernetes.NewForConfig(config); err != nil {
				return err
			}
			if err := copyFiles([]string{hook}, c.ClientDir); err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			return node.Run(ctx, c, l)
		},
	}
	f := cmd.Flags()
	apiserver.AddFlag(f, &kubeconfig)
	f.StringVar(&c.Driver, "driver-name", "remote.gpu.nvidia.com", "name of the DRA driver of remote GPUs")
	f.StringVar(&c.NodeName, "node-name", "", "name of this node")
	f.StringVar(&c.PluginDir, "plugin-dir", "", "directory for the socket and for records, below the kubelet's plugins")
	f.StringVar(&c.RegistryDir, "registry-dir", "/var/lib/kubelet/plugins_registry", "where the kubelet looks for "+
		"plugins")
	f.StringVar(&c.CDIDir, "cdi-dir", "/var/run/cdi", "where container runtimes look for CDI specs")
	f.StringVar(&c.ClientDir, "client-dir", "", "directory with the client's libraries in lib, the same path on the "+
		"host")
	f.StringVar(&c.Engine, "engine", "lupine", "engine whose client the libraries are")
	f.StringVar(&listen, "listen", "", "address and port for the containers of this node, an address of the node")
	f.StringVar(&hook, "hook", "/usr/bin/"+node.HookProgram, "program that runs CDI hooks, copied to --client-dir")
	for _, name := range []string{"node-name", "plugin-dir", "client-dir", "listen"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

// copyFiles copies the files that match the patterns into dir, each atomically, and makes dir if it is absent. A
// pattern without a file is an error.
func copyFiles(patterns []string, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("copy %s: %w", pattern, err)
		}
		if len(files) == 0 {
			return fmt.Errorf("copy %s: no such file in this image", pattern)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, filepath.Base(file))
			if err := renameio.WriteFile(to, content, 0o755, renameio.IgnoreUmask()); err != nil {
				return fmt.Errorf("copy %s: %w", file, err)
			}
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// plugin is what all commands share: the connection to the cluster, and the streams.
type plugin struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags

	// What connect sets.
	client    kubernetes.Interface // with the rights of the user
	namespace string               // of --namespace or of the context
	explicit  bool                 // the namespace is of --namespace
}

// Command returns the command "kubectl gpu" of that version. The caller prints its error.
func Command(streams genericiooptions.IOStreams, version string) *cobra.Command {
	p := &plugin{IOStreams: streams, config: genericclioptions.NewConfigFlags(true)}
	p.config.WrapConfigFn = fast
	cmd := &cobra.Command{
		Use:           "kubectl-gpu",
		Short:         "Show the GPUs of the cluster and who holds them, free some, and keep some.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	p.config.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(lsCommand(p), describeCommand(p), modelsCommand(p), topCommand(p), whyCommand(p), fitsCommand(p),
		defragCommand(p), reserveCommand(p), uiCommand(p), versionCommand(p, version))
	for _, sub := range cmd.Commands() {
		sub.Args = withUsage(sub.Args)
	}
	return cmd
}

// withUsage says how a command is called where its arguments are wrong.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check == nil || check(cmd, args) == nil {
			return nil
		}
		return fmt.Errorf("an argument is missing or too much; write: %s (%s --help says more)", cmd.UseLine(),
			cmd.CommandPath())
	}
}

// fast lets the API server limit requests, not the client, and reads objects as protobuf: a cluster can have 100,000
// devices.
func fast(config *rest.Config) *rest.Config {
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// connect sets the client and the namespace.
func (p *plugin) connect() error {
	loader := p.config.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	if err != nil {
		return err
	}
	if len(raw.Clusters) == 0 && ptr.Deref(p.config.APIServer, "") == "" { // the client would take localhost:8080
		if _, err := rest.InClusterConfig(); err != nil {
			return errors.New("there is no kubeconfig that names a cluster; set KUBECONFIG, or give --kubeconfig")
		}
	}
	if p.namespace, p.explicit, err = loader.Namespace(); err != nil {
		return err
	}
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return err
	}
	p.client, err = kubernetes.NewForConfig(config)
	return err
}

// read reads the resources, and little of pods. It shows the progress on a terminal.
func (p *plugin) read(ctx context.Context, resources ...string) *cluster.Snapshot {
	r, stop := p.reader()
	defer stop()
	r.Slim = slimPods
	return r.Read(ctx, resources...)
}

// readAll reads what decides about the claims of the namespace, or of all if that is empty, and of a file.
func (p *plugin) readAll(ctx context.Context, namespace string, of why.Manifest) *cluster.Snapshot {
	r, stop := p.reader()
	defer stop()
	return schedule.Read(ctx, r, namespace, of.Claims, of.Templates)
}

// reader returns a reader that shows its progress on a terminal until stop is called.
func (p *plugin) reader() (r read.Reader, stop func()) {
	r, stop = read.Reader{Client: p.client, Namespace: p.namespace, Devices: keptDevices}, func() {}
	if isTerminal(p.ErrOut) {
		var objects atomic.Int64
		r.Progress = func() { objects.Add(1) }
		stop = showProgress(p.ErrOut, &objects)
	}
	return r, stop
}

// keptDevices is what all commands but why, fits and reserve need of slices, so that a large cluster needs little time
// and memory: of the partitions of a whole GPU that the driver would create, one of each profile.
func keptDevices() read.Devices {
	type key struct {
		driver string
		pool   resourceapi.ResourcePool
		gpu    string
		what   string // a profile; empty: the whole GPU
	}
	seen := map[key]bool{}
	return read.Devices{Keep: func(slice *resourceapi.ResourceSlice, device string, consumes bool) (keep, id bool) {
		of := key{slice.Spec.Driver, slice.Spec.Pool, gpu.ParentName(device), ""}
		switch {
		case !gpu.IsPart(device):
			seen[of] = true
		case consumes && seen[of]:
			of.what = gpu.PartitionProfile(device)
			keep = !seen[of]
			seen[of] = true
			return keep, false
		}
		return true, true
	}}
}

// progressInterval is the time between two updates of the progress. A fast answer shows none.
const progressInterval = time.Second

// showProgress writes how many objects have been read, until stop is called.
func showProgress(out io.Writer, objects *atomic.Int64) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for clear := ""; ; clear = "\r\x1b[K" {
			select {
			case <-done:
				fmt.Fprint(out, clear)
				return
			case <-time.After(progressInterval):
				fmt.Fprintf(out, "\rreading: %d objects", objects.Load())
			}
		}
	})
	return func() {
		close(done)
		group.Wait()
	}
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// columns returns how many columns the terminal has. Zero: output goes elsewhere.
func (p *plugin) columns() int {
	if file, ok := p.Out.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// colours reports whether output may be coloured: only on a terminal, and not with NO_COLOR (no-color.org).
func (p *plugin) colours() bool {
	return isTerminal(p.Out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

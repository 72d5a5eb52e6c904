// SPDX-License-Identifier: Apache-2.0

// dra-controller is the cluster-wide part of the driver.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/gpudra/gpu-dra-driver/convert"
	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/controller"
	"github.com/gpudra/gpu-dra-driver/internal/controller/extender"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/idle"
	"github.com/gpudra/gpu-dra-driver/internal/controller/preempt"
)

func main() {
	// The controller uses a few MB that hardly change: collect garbage twice as often to save memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if limit, err := strconv.ParseInt(os.Getenv("MEMORY_LIMIT"), 10, 64); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(goMemory(limit))
	}
	cmd := command()
	// The errors of these commands are for people, not for a log.
	if len(os.Args) > 1 && slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool {
		return c.Name() == os.Args[1]
	}) {
		if err := cli.RunNoErrOutput(cmd); err != nil {
			fmt.Fprintf(os.Stderr, "Error: %v\n", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(cmd))
}

// goMemory returns how much of the container's memory Go may use until it collects garbage more often. The rest is for
// what Go does not count, and for a burst.
func goMemory(limit int64) int64 { return limit / 10 * 9 }

func command() *cobra.Command {
	var o controller.Options
	var kubeconfig string
	logs := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:          "dra-controller",
		Short:        "Judges claims for GPUs when they are made, ranks GPUs, and tells what the cluster has of them.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PreRunE: func(*cobra.Command, []string) error {
			if err := logsapi.ValidateAndApply(logs, nil); err != nil {
				return err
			}
			ctrl.SetLogger(klog.Background())
			return check(o)
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if o.REST, err = apiserver.Config(kubeconfig); err != nil {
				return err
			}
			return controller.Run(ctx, o)
		},
	}
	addFlags(cmd.Flags(), &o)
	apiserver.AddFlag(cmd.Flags(), &kubeconfig)
	logsapi.AddFlags(logs, cmd.Flags())
	cmd.AddCommand(slicesCommand(), publishedCommand())
	convert.AddTo(cmd, &o.Features) // without this line and its folder, there is no conversion
	return cmd
}

func addFlags(f *pflag.FlagSet, o *controller.Options) {
	feature.AddDriverName(f, &o.DriverName)
	f.StringVar(&o.Name, "name", "", "name of the webhook configurations, of the service and of the lease (required)")
	f.StringVar(&o.Namespace, "namespace", os.Getenv("NAMESPACE"), "namespace of this program's pod")
	f.StringVar(&o.StrongestClass, "strongest-class", "strongest.gpu.nvidia.com",
		"class whose requests become an ordered list, the strongest GPU first; empty: none")
	f.IntVar(&o.StrongestRanks, "strongest-ranks", 4, "how many ranks the list has at most, 2 to 8: few for the "+
		"default scheduler, 8 for one that weighs DynamicResources more")
	f.DurationVar(&o.WaitingAfter, "waiting-events-after", time.Minute, "how long a claim waits until an event says "+
		"why; 0: no such events")
	f.BoolVar(&o.EvictExtended, "evict-extended-resources", false, "evict pods from GPUs with a NoExecute taint if "+
		"they have got them as an extended resource: Kubernetes evicts only those with claims in their spec")
	f.StringVar(&o.Placement, "placement", "pack", "how nodes are scored for a scheduler that asks: pack or spread; "+
		"empty: not at all")
	f.StringVar(&o.PartitionRequests, "partition-requests", "", "ConfigMap in --namespace in which nodes are named "+
		"whose possible partitions pods wait for, so that the plugins there publish them; empty: none")
	f.StringVar(&o.Bill, "bill", "", "ConfigMap in --namespace in which is stored how long who had which GPUs, with "+
		"the prices of GPUs; empty: that is not counted")
	f.StringVar(&o.RetryClass, "retry-class", "", "device class that nobody uses: by its updates the scheduler tries "+
		"pods again that wait although a GPU has room for their shares; empty: never")
	f.BoolVar(&o.Preempt, "preempt", false, "evict pods of lower priority for pods that wait for devices: the "+
		"scheduler does that only for CPU and memory")
	f.StringSliceVar(&o.PreemptSchedulers, "preempt-schedulers", preempt.Schedulers, "schedulers for whose pods "+
		"--preempt evicts others")
	f.DurationVar(&o.IdleWarning, "idle-warning", 0, "how long before its eviction a pod is warned that does not use "+
		"its GPUs, in namespaces with the label "+idle.Label+"; 0: none is evicted")
	f.BoolVar(&o.Quota, "quota", false, "hold claims to the GPUQuotas of their namespaces")
	f.StringVar(&o.RemoteAccount, "remote-account", "", "user name of the plugin on nodes that use GPUs over the "+
		"network, system:serviceaccount:NAMESPACE:NAME; empty: there are no such GPUs")
	f.IntVar(&o.WebhookPort, "webhook-port", 9443, "where webhooks are served")
	f.IPNetSliceVar(&o.WebhookAddresses, "webhook-addresses", nil, "networks from which API servers call, as this "+
		"program sees them; empty: any")
	f.StringVar(&o.WebhookAuthorities, "webhook-client-ca", "", "file with the authorities of the client certificates "+
		"that API servers have; empty: they need none")
	f.StringVar(&o.HealthAddress, "health-address", ":8081", "where /healthz and /readyz are served")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":8080", "where /metrics is served; 0: nowhere")
	f.IntVar(&o.ProfilesPort, "profiles-port", 0, "where profiles of Go are served, on 127.0.0.1 only; 0: nowhere")
	f.StringVar(&o.CertificateDir, "certificate-dir", "", "directory with tls.crt and tls.key that somebody else "+
		"keeps, such as cert-manager; empty: the controller makes and renews its own")
	f.DurationVar(&o.CertificateLifetime, "certificate-lifetime", 90*24*time.Hour,
		"of a certificate that the controller makes; it is replaced when a third of that is left")
}

func isPolicy(name string) bool {
	_, ok := extender.Policies[name]
	return ok
}

func check(o controller.Options) error {
	switch {
	case o.Name == "":
		return errors.New("--name is required: that of the webhook configurations")
	case o.Namespace == "":
		return errors.New("--namespace (or NAMESPACE) is required: that of this program's pod")
	case o.StrongestRanks < 2 || o.StrongestRanks > 8:
		return fmt.Errorf("--strongest-ranks %d: must be from 2 to 8", o.StrongestRanks)
	case o.WaitingAfter != 0 && o.WaitingAfter < time.Second:
		return fmt.Errorf("--waiting-events-after %s: must be 0 or at least 1s", o.WaitingAfter)
	case o.Placement != "" && !isPolicy(o.Placement):
		return fmt.Errorf("--placement %s: must be pack, spread or empty", o.Placement)
	case o.Preempt && len(o.PreemptSchedulers) == 0:
		return errors.New("--preempt-schedulers: must name at least one scheduler, such as default-scheduler")
	case o.IdleWarning != 0 && o.IdleWarning < time.Second:
		return fmt.Errorf("--idle-warning %s: must be 0 or at least 1s", o.IdleWarning)
	case o.CertificateLifetime < time.Minute:
		return fmt.Errorf("--certificate-lifetime %s: must be at least 1m", o.CertificateLifetime)
	}
	for _, f := range o.Features {
		if err := f.Check(); err != nil {
			return err
		}
	}
	return nil
}

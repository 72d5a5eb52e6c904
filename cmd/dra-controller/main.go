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
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/gpudra/gpu-dra-driver/internal/controller"
	"github.com/gpudra/gpu-dra-driver/internal/controller/convert"
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
	if len(os.Args) > 1 && slices.Contains([]string{slicesName, convertName}, os.Args[1]) {
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
	var c controller.Config
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
			return check(c)
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if c.REST, err = connect(kubeconfig); err != nil {
				return err
			}
			return controller.Run(ctx, c)
		},
	}
	addFlags(cmd.Flags(), &c)
	addKubeconfig(cmd.Flags(), &kubeconfig)
	logsapi.AddFlags(logs, cmd.Flags())
	cmd.AddCommand(slicesCommand(), convertCommand())
	return cmd
}

func addKubeconfig(f *pflag.FlagSet, file *string) {
	f.StringVar(file, "kubeconfig", "", "how to reach the API server; empty: as a pod does")
}

func addDriverName(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "driver-name", "gpu.nvidia.com", "name of the driver, as in device classes")
}

func addFlags(f *pflag.FlagSet, c *controller.Config) {
	addDriverName(f, &c.DriverName)
	f.StringVar(&c.Name, "name", "", "name of the webhook configurations, of the service and of the lease (required)")
	f.StringVar(&c.Namespace, "namespace", os.Getenv("NAMESPACE"), "namespace of this program's pod")
	f.StringVar(&c.StrongestClass, "strongest-class", "strongest.gpu.nvidia.com",
		"class whose requests become an ordered list, the strongest GPU first; empty: none")
	f.IntVar(&c.StrongestRanks, "strongest-ranks", 4, "how many ranks the list has at most, 2 to 8: few for the "+
		"default scheduler, 8 for one that weighs DynamicResources more")
	f.StringSliceVar(&c.ConvertFamilies, "convert-families", nil, "older systems whose pods are converted to claims: "+
		strings.Join(convert.Names(), ", ")+"; empty: none")
	f.Var((*models)(&c.ConvertModels), "convert-model", "MEMORY/TFLOPS of a GPU that a pod may get a part of, besides "+
		"those that are published, such as 15Gi/65; may be repeated")
	addMemoryUnit(f, &c.ConvertMemoryUnit)
	f.StringToStringVar(&c.ConvertNames, "convert-name", nil, nameHelp)
	f.DurationVar(&c.WaitingAfter, "waiting-events-after", time.Minute, "how long a claim waits until an event says "+
		"why; 0: no such events")
	f.BoolVar(&c.EvictExtended, "evict-extended-resources", false, "evict pods from GPUs with a NoExecute taint if "+
		"they have got them as an extended resource: Kubernetes evicts only those with claims in their spec")
	f.IntVar(&c.WebhookPort, "webhook-port", 9443, "where webhooks are served")
	f.StringVar(&c.HealthAddress, "health-address", ":8081", "where /healthz and /readyz are served")
	f.StringVar(&c.MetricsAddress, "metrics-address", ":8080", "where /metrics is served; 0: nowhere")
	f.StringVar(&c.CertificateDir, "certificate-dir", "", "directory with tls.crt and tls.key that somebody else "+
		"keeps, such as cert-manager; empty: the controller makes and renews its own")
	f.DurationVar(&c.CertificateLifetime, "certificate-lifetime", 90*24*time.Hour,
		"of a certificate that the controller makes; it is replaced when a third of that is left")
}

func check(c controller.Config) error {
	switch {
	case c.Name == "":
		return errors.New("--name is required: that of the webhook configurations")
	case c.Namespace == "":
		return errors.New("--namespace (or NAMESPACE) is required: that of this program's pod")
	case c.StrongestRanks < 2 || c.StrongestRanks > 8:
		return fmt.Errorf("--strongest-ranks %d: must be from 2 to 8", c.StrongestRanks)
	case c.WaitingAfter != 0 && c.WaitingAfter < time.Second:
		return fmt.Errorf("--waiting-events-after %s: must be 0 or at least 1s", c.WaitingAfter)
	case c.CertificateLifetime < time.Minute:
		return fmt.Errorf("--certificate-lifetime %s: must be at least 1m", c.CertificateLifetime)
	}
	if err := convert.CheckNames(c.ConvertNames); err != nil {
		return fmt.Errorf("--convert-name: %w", err)
	}
	return checkFamilies("convert-families", c.ConvertFamilies)
}

// connect returns a configuration without a rate limit: API priority and fairness limits requests on the server.
func connect(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server (--kubeconfig %q): %w", kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

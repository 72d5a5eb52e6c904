// SPDX-License-Identifier: Apache-2.0

// Command dra-conformance tests a DRA driver: see package conformance and docs/project/conformance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errFailed):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "dra-conformance:", err)
		os.Exit(2)
	}
}

// errFailed means that a check failed that the driver must pass.
var errFailed = errors.New("the driver does not conform")

// options are the flags that are not in conformance.Config.
type options struct {
	kubeconfig, socket, output string
	claim                      string // a file
	list                       bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	config, o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.list {
		_, err := fmt.Fprintln(stdout, strings.Join(conformance.IDs(), "\n"))
		return err
	}
	access, err := conformance.Connect(o.kubeconfig, o.socket)
	if err != nil {
		return err
	}
	var results []conformance.Result
	err = conformance.Run(ctx, config, access, func(r conformance.Result) {
		results = append(results, r)
		fmt.Fprintf(stderr, "%s %s %s\n", r.Status, r.ID, strings.ReplaceAll(r.Detail, "\n", " "))
	})
	write := conformance.WriteText
	if o.output == "json" {
		write = conformance.WriteJSON
	}
	if err := errors.Join(err, write(stdout, results)); err != nil { // also the results until it was interrupted
		return err
	}
	if conformance.Failed(results, config.Claimed) {
		return errFailed
	}
	return nil
}

func parse(args []string, stderr io.Writer) (conformance.Config, options, error) {
	var o options
	config := conformance.Config{Poll: 500 * time.Millisecond}
	flags := flag.NewFlagSet("dra-conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` of an administrator; default: as kubectl")
	flags.StringVar(&config.Driver, "driver", "", "`name` of the driver (required)")
	flags.StringVar(&config.Class, "class", "", "`name` of a DeviceClass for its devices; default: the driver's name")
	flags.StringVar(&o.claim, "claim", "", "`file` with the spec of a ResourceClaim; default: one device of the class")
	flags.StringVar(&config.Node, "node", "", "`name` of the node for all pods; default: the first with devices")
	flags.StringVar(&config.Image, "image", "registry.k8s.io/pause:3.10", "`image` of the pods")
	words(flags, &config.Args, "args", "arguments of the container, separated by spaces, with which it runs until it "+
		"is told to end")
	words(flags, &config.Probe, "probe", "command in the container that prints which devices it has")
	words(flags, &config.Cat, "cat", "command in the container that prints the file whose path is appended, such "+
		"as cat")
	flags.StringVar(&o.socket, "socket", "", "`path` of the plugin's dra.sock on the node, as this program sees it; "+
		"may be a pattern, the newest counts")
	flags.StringVar(&config.CDIDir, "cdi-dir", "", "the node's `directory` with CDI files, as this program sees it")
	flags.StringVar(&config.RestartPlugin, "restart-plugin", "", "command `line` that restarts the plugin on the node")
	flags.StringVar(&config.RestartKubelet, "restart-kubelet", "", "command `line` that restarts the kubelet of "+
		"the node")
	flags.StringVar(&config.UpgradePlugin, "upgrade-plugin", "", "command `line` that replaces the plugin by "+
		"another version")
	flags.StringVar(&config.Sick, "sick", "", "command `line` that makes one of several devices of the node sick")
	flags.StringVar(&config.Well, "well", "", "command `line` that makes it healthy")
	flags.DurationVar(&config.ForgottenAfter, "forgotten-after", 0, "`time` after which the driver releases a claim "+
		"that the kubelet has forgotten")
	parameters(flags, &config.Accepted, "accepts", "opaque parameters as `JSON` that the driver accepts; may "+
		"be repeated")
	parameters(flags, &config.Refused, "refuses", "opaque parameters as `JSON` that the driver must refuse; may "+
		"be repeated")
	flags.StringVar(&config.ServiceAccount, "service-account", "", "the plugin's, as `namespace:name`")
	list(flags, &config.Claimed, "claims", "`IDs` of optional checks that the driver claims to pass, separated by "+
		"commas")
	list(flags, &config.Only, "only", "`IDs` of the checks to run, separated by commas")
	flags.BoolVar(&o.list, "list", false, "print the IDs of all checks")
	flags.DurationVar(&config.Timeout, "timeout", 2*time.Minute, "`time` after which a wait fails")
	flags.StringVar(&o.output, "o", "text", "`format` of the results: text or json")
	if err := flags.Parse(args); err != nil {
		return config, o, err
	}
	switch {
	case flags.NArg() > 0:
		return config, o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case config.Driver == "" && !o.list:
		return config, o, errors.New("-driver: want the name of the driver")
	case o.output != "text" && o.output != "json":
		return config, o, fmt.Errorf("-o %s: want text or json", o.output)
	}
	if config.Class == "" {
		config.Class = config.Driver
	}
	if o.claim == "" {
		return config, o, nil
	}
	data, err := os.ReadFile(o.claim)
	if err != nil {
		return config, o, err
	}
	config.Spec = &resourceapi.ResourceClaimSpec{}
	if err := yaml.UnmarshalStrict(data, config.Spec); err != nil {
		return config, o, fmt.Errorf("%s: %w", o.claim, err)
	}
	if len(config.Spec.Devices.Requests) == 0 {
		return config, o, fmt.Errorf("%s: devices.requests: want at least one", o.claim)
	}
	return config, o, nil
}

func words(flags *flag.FlagSet, to *[]string, name, usage string) {
	flags.Func(name, "`words`: "+usage, func(text string) error { *to = strings.Fields(text); return nil })
}

func list(flags *flag.FlagSet, to *[]string, name, usage string) {
	flags.Func(name, usage, func(text string) error { *to = strings.Split(text, ","); return nil })
}

func parameters(flags *flag.FlagSet, to *[][]byte, name, usage string) {
	flags.Func(name, usage, func(text string) error {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
			return err
		}
		*to = append(*to, []byte(text))
		return nil
	})
}

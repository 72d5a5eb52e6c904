// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/nodetemplate"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// slicesName is the name of the command slices.
const slicesName = "slices"

// slicesOptions are the flags of the command slices.
type slicesOptions struct {
	kubeconfig string
	fromNode   string
	profile    string
	nodeConfig string
	as         nodetemplate.Target
}

// slicesCommand is the command slices.
func slicesCommand() *cobra.Command {
	var o slicesOptions
	cmd := &cobra.Command{
		Use:   slicesName + " --from-node NODE | --profile NAME",
		Short: "Print the ResourceSlices of a node that does not exist yet",
		Long: "Print the ResourceSlices of a node that does not exist yet, for an autoscaler: those of a node that " +
			"exists, or of a known kind of machine.\n" +
			"UUIDs are replaced by numbers, taints are left out, and nothing is changed in the cluster.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := o.template(cmd.Context(), cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, w := range t.Warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", w)
			}
			text, err := t.YAML()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.fromNode, "from-node", "", "a node like the new one: its slices are read from the API server")
	f.StringVar(&o.profile, "profile", "", "what machine the new node is: "+strings.Join(nodetemplate.Profiles(), ", "))
	f.StringVar(&o.nodeConfig, "node-config", "", "with --profile: file with the node configuration of the new node; "+
		"-: standard input; empty: none")
	f.StringVar(&o.as.Name, "node-name", "template", "name of the new node")
	feature.AddDriverName(f, &o.as.Driver)
	apiserver.AddFlag(f, &o.kubeconfig)
	return cmd
}

// template returns the template that the flags describe.
func (o slicesOptions) template(ctx context.Context, in io.Reader) (nodetemplate.Template, error) {
	var none nodetemplate.Template
	problems := validation.IsDNS1123Subdomain(o.as.Name)
	switch {
	case len(problems) > 0:
		return none, fmt.Errorf("--node-name %q: %s", o.as.Name, strings.Join(problems, "; "))
	case (o.fromNode == "") == (o.profile == ""):
		return none, errors.New("one of --from-node and --profile is required, and not both")
	case o.profile != "":
		config, err := readNodeConfig(o.nodeConfig, in)
		if err != nil {
			return none, err
		}
		return nodetemplate.FromProfile(o.profile, config, o.as)
	case o.nodeConfig != "":
		return none, errors.New("--node-config is for --profile: a node that exists has its configuration")
	}
	config, err := apiserver.Config(o.kubeconfig)
	if err != nil {
		return none, err
	}
	client, err := resourceclient.NewForConfig(config)
	if err != nil {
		return none, err
	}
	return nodetemplate.FromNode(ctx, client.ResourceSlices(), o.fromNode, o.as)
}

func readNodeConfig(file string, in io.Reader) (nodeconfig.Config, error) {
	var text []byte
	var err error
	switch file {
	case "":
		return nodeconfig.Config{}, nil
	case "-":
		text, err = io.ReadAll(in)
	default:
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nodeconfig.Config{}, fmt.Errorf("--node-config: %w", err)
	}
	config, err := nodeconfig.Parse(text)
	if err != nil {
		return nodeconfig.Config{}, fmt.Errorf("--node-config %s: %w", file, err)
	}
	return config, nil
}

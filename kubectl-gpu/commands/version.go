// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
)

func versionCommand(p *plugin, version string) *cobra.Command {
	var plugins string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of this program and of Kubernetes, and the images of the driver on the nodes.",
		Example: "  kubectl gpu version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.versions(cmd.Context(), version, plugins)
		},
	}
	addPlugins(cmd, &plugins)
	return cmd
}

// versions prints what it can find out.
func (p *plugin) versions(ctx context.Context, version, selector string) error {
	t := table{header: []string{"PROGRAM", "VERSION", "NODES"}}
	t.add("kubectl-gpu", version, none)
	err := p.connect()
	if err == nil {
		info, failed := p.client.Discovery().ServerVersion()
		if failed == nil {
			t.add("Kubernetes", info.GitVersion, none)
		}
		pods, unread := pluginPods(ctx, p.client, selector)
		err = errors.Join(failed, unread)
		nodes := map[string]sets.Set[string]{} // by image
		for _, pod := range pods {
			for _, c := range pod.Spec.Containers {
				if c.Name == "plugin" {
					nodes[c.Image] = nodes[c.Image].Union(sets.New(pod.Spec.NodeName))
				}
			}
		}
		for _, image := range slices.Sorted(maps.Keys(nodes)) {
			t.add("driver", image, fmt.Sprint(len(nodes[image])))
		}
	}
	return errors.Join(p.printTable(t, output{}), err)
}

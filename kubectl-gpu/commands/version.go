// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
)

func versionCommand(p *plugin, version string) *cobra.Command {
	var plugins string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of this program, of Kubernetes, and of the driver on the nodes.",
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
	add := func(cells ...string) { t.rows = append(t.rows, row{cells: cells}) }
	add("kubectl-gpu", version, none)
	client, err := p.client()
	if err == nil {
		info, failed := client.Discovery().ServerVersion()
		if failed == nil {
			add("Kubernetes", info.GitVersion, none)
		}
		pods, unread := pluginPods(ctx, client, selector)
		err = errors.Join(failed, unread)
		nodes := map[string]int{}
		for _, pod := range pods {
			nodes[cmp.Or(pod.Labels["app.kubernetes.io/version"], unknown)]++
		}
		for _, v := range slices.Sorted(maps.Keys(nodes)) {
			add("driver", v, fmt.Sprint(nodes[v]))
		}
	}
	return errors.Join(p.printTable(t, output{}), err)
}

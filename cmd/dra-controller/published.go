// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// publishedName is the name of the command published.
const publishedName = "published"

// publishedCommand is the command published, with which `helm test` begins.
func publishedCommand() *cobra.Command {
	var kubeconfig, driver string
	cmd := &cobra.Command{
		Use:          publishedName,
		Short:        "Print how many devices each node publishes; it is an error if there are none",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := apiserver.Config(kubeconfig)
			if err != nil {
				return err
			}
			client, err := resourceclient.NewForConfig(config)
			if err != nil {
				return err
			}
			list, err := client.ResourceSlices().List(cmd.Context(), metav1.ListOptions{
				FieldSelector: fields.Set{resourceapi.ResourceSliceSelectorDriver: driver}.String()})
			if err != nil {
				return fmt.Errorf("list ResourceSlices: %w", err)
			}
			lines := published(list.Items)
			if len(lines) == 0 {
				return fmt.Errorf("no node publishes a GPU of the driver %s: do nodes with GPUs have the label that "+
					"the plugin needs, such as nvidia.com/gpu.present=true, and are its pods ready there?", driver)
			}
			fmt.Fprintln(cmd.OutOrStdout(), strings.Join(lines, "\n"))
			return nil
		},
	}
	feature.AddDriverName(cmd.Flags(), &driver)
	apiserver.AddFlag(cmd.Flags(), &kubeconfig)
	return cmd
}

// published returns a line for each node with devices for claims: how many of each type it publishes.
func published(all []resourceapi.ResourceSlice) []string {
	nodes := map[string]map[string]int{}
	for i := range all {
		spec := &all[i].Spec
		for _, d := range spec.Devices {
			kind := d.Attributes["type"].StringValue
			if kind == nil || *kind == string(gpu.TypeMonitor) || spec.NodeName == nil {
				continue
			}
			if nodes[*spec.NodeName] == nil {
				nodes[*spec.NodeName] = map[string]int{}
			}
			nodes[*spec.NodeName][*kind]++
		}
	}
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		var counts []string
		for _, kind := range slices.Sorted(maps.Keys(nodes[node])) {
			counts = append(counts, fmt.Sprintf("%d %s", nodes[node][kind], kind))
		}
		lines = append(lines, node+": "+strings.Join(counts, ", "))
	}
	return lines
}

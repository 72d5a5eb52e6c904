// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/apiserver"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// command is the command convert, which converts manifests.
type command struct {
	files      []string
	recursive  bool
	kubeconfig string
	converter  converter
}

// newCommand returns the command convert.
func newCommand() *cobra.Command {
	var o command
	cmd := &cobra.Command{
		Use:   "convert -f FILE",
		Short: "Print manifests of older GPU-sharing systems with claims instead",
		Long: "Print manifests of older GPU-sharing systems with claims instead: pods, and objects that have a " +
			"template of pods. Other objects are printed as they are.\n" +
			"Parts of a GPU's memory need the models of GPUs: those of the cluster, or those of --model.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f, c := cmd.Flags(), &o.converter
	f.StringSliceVarP(&o.files, "filename", "f", nil, "files or directories; -: standard input (required)")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "also read the directories in directories")
	f.StringSliceVar(&c.Families, "families", Names(), "the older systems")
	f.Var((*models)(&c.Models), "model", "MEMORY/TFLOPS of a GPU of the cluster, such as 15Gi/65; may be repeated. "+
		"Without it, the GPUs are read from the API server if --kubeconfig is set")
	addMemoryUnit(f, &c.MemoryUnit)
	f.StringToStringVar((*map[string]string)(&c.Names), "name", nil, nameHelp)
	feature.AddDriverName(f, &c.Driver)
	apiserver.AddFlag(f, &o.kubeconfig)
	return cmd
}

func (o command) run(cmd *cobra.Command) error {
	if len(o.files) == 0 {
		return errors.New("--filename is required: files, directories, or - for standard input")
	}
	c := o.converter
	if err := c.checkFlags("families", "name"); err != nil {
		return err
	}
	if len(c.Models) == 0 && o.kubeconfig != "" {
		published, err := publishedGPUs(cmd.Context(), o.kubeconfig, c.Driver)
		if err != nil {
			return err
		}
		c.Models, c.Partitions = modelsOf(published), partitionsOf(published)
	}
	var last error
	for _, name := range o.files {
		if name == "-" {
			last = cmp.Or(c.manifests(cmd.InOrStdin(), cmd.OutOrStdout(), teller(cmd, "standard input")), last)
			continue
		}
		files, err := manifestFiles(name, o.recursive)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			err = c.manifests(bytes.NewReader(text), cmd.OutOrStdout(), teller(cmd, file))
			if err != nil {
				last = fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return last
}

// teller returns a function that says what became of the objects of a file.
func teller(cmd *cobra.Command, file string) func(result) {
	return func(r result) {
		say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
		if errors.Is(r.Err, errNoModels) {
			r.Err = fmt.Errorf("%w; name the models with --model, or set --kubeconfig", r.Err)
		}
		switch {
		case r.Err != nil:
			say("%s:%d: %s: not converted: %v", file, r.Line, r.Object, r.Err)
		case r.Converted:
			say("%s: converted", r.Object)
		case len(r.Warnings) > 0:
			say("%s:%d: %s: nothing to convert is known in it", file, r.Line, r.Object)
		}
		for _, w := range r.Warnings {
			say("  %s", w)
		}
		for _, p := range r.Passed {
			say("%s:%d: %s: not converted: %s", file, p.Line, r.Object, p)
		}
	}
}

// manifestFiles returns the file, or the YAML and JSON files of the directory.
func manifestFiles(name string, recursive bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !recursive:
			return fs.SkipDir
		case entry.IsDir():
			return nil
		case path == name || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// publishedGPUs returns a view of the GPUs in the cluster, and of the class of partitions if it exists.
func publishedGPUs(ctx context.Context, kubeconfig, driver string) (*cluster.View, error) {
	config, err := apiserver.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := resourceclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	list, err := api.ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + driver})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	v := cluster.New(driver)
	for i := range list.Items {
		v.SetSlice(&list.Items[i])
	}
	class, err := api.DeviceClasses().Get(ctx, partitionClass(driver), metav1.GetOptions{})
	switch {
	case err == nil:
		v.SetClass(class)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get a DeviceClass: %w", err)
	}
	return v, nil
}

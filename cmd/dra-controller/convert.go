// SPDX-License-Identifier: Apache-2.0

package main

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
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/convert"
)

// convertName is the name of the command convert.
const convertName = "convert"

// nameHelp is the help of the flag with the names of resources.
const nameHelp = "OWN=KNOWN: a name that an administrator of an older system gave to a resource, and its usual name, " +
	"such as nvidia.com/vgpu=nvidia.com/gpu; may be repeated"

// convertOptions are the flags of the command convert.
type convertOptions struct {
	files      []string
	recursive  bool
	kubeconfig string
	driver     string
	families   []string
	models     []convert.Model
	memory     int64
	names      map[string]string
}

// convertCommand is the command convert.
func convertCommand() *cobra.Command {
	var o convertOptions
	cmd := &cobra.Command{
		Use:   convertName + " -f FILE",
		Short: "Print manifests of older GPU-sharing systems with claims instead",
		Long: "Print manifests of older GPU-sharing systems with claims instead: pods, and objects that have a " +
			"template of pods. The quotas of gpu-admission become ResourceQuotas. Other objects are printed as they " +
			"are.\n" +
			"Parts of a GPU's memory need the models of GPUs: those of the cluster, or those of --model.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "files or directories; -: standard input (required)")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "also read the directories in directories")
	f.StringSliceVar(&o.families, "families", convert.Names(), "the older systems")
	f.Var((*models)(&o.models), "model", "MEMORY/TFLOPS of a GPU of the cluster, such as 15Gi/65; may be repeated. "+
		"Without it, the GPUs are read from the API server if --kubeconfig is set")
	addMemoryUnit(f, &o.memory)
	f.StringToStringVar(&o.names, "name", nil, nameHelp)
	addDriverName(f, &o.driver)
	addKubeconfig(f, &o.kubeconfig)
	return cmd
}

func (o convertOptions) run(cmd *cobra.Command) error {
	if len(o.files) == 0 {
		return errors.New("--filename is required: files, directories, or - for standard input")
	}
	if err := checkFamilies("families", o.families); err != nil {
		return err
	}
	if err := convert.CheckNames(o.names); err != nil {
		return fmt.Errorf("--name: %w", err)
	}
	c := convert.Converter{Driver: o.driver, Families: o.families, Models: o.models, MemoryUnit: o.memory,
		Names: o.names}
	if len(o.models) == 0 && o.kubeconfig != "" {
		published, err := publishedGPUs(cmd.Context(), o.kubeconfig, o.driver)
		if err != nil {
			return err
		}
		c.Models, c.Partitions = convert.ModelsOf(published), convert.PartitionsOf(published)
		c.Products = convert.ProductsOf(published)
	}
	var last error
	for _, name := range o.files {
		if name == "-" {
			last = cmp.Or(c.Manifests(cmd.InOrStdin(), cmd.OutOrStdout(), teller(cmd, "standard input")), last)
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
			err = c.Manifests(bytes.NewReader(text), cmd.OutOrStdout(), teller(cmd, file))
			if err != nil {
				last = fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return last
}

// teller returns a function that says what became of the objects of a file.
func teller(cmd *cobra.Command, file string) func(convert.Report) {
	return func(r convert.Report) {
		say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
		if errors.Is(r.Err, convert.ErrNoModels) {
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
	config, err := connect(kubeconfig)
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
	class, err := api.DeviceClasses().Get(ctx, convert.PartitionClass(driver), metav1.GetOptions{})
	switch {
	case err == nil:
		v.SetClass(class)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get a DeviceClass: %w", err)
	}
	return v, nil
}

// checkFamilies checks the value of the flag.
func checkFamilies(flag string, names []string) error {
	known := convert.Names()
	if slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(known, name) }) {
		return fmt.Errorf("--%s %s: want some of %s", flag, strings.Join(names, ","), strings.Join(known, ", "))
	}
	return nil
}

// models is a flag with a model of GPU.
type models []convert.Model

// Set adds a model.
func (m *models) Set(text string) error {
	amount, rate, _ := strings.Cut(text, "/")
	memory, err := resource.ParseQuantity(amount)
	tflops, invalid := strconv.ParseInt(rate, 10, 64)
	if err != nil || invalid != nil || memory.Value() < 1<<20 || tflops < 1 {
		return fmt.Errorf("%q: want MEMORY/TFLOPS, such as 15Gi/65", text)
	}
	*m = append(*m, convert.Model{Memory: memory.Value(), PeakCompute: tflops})
	return nil
}

// String returns the models as they are written.
func (m *models) String() string {
	var all []string
	for _, one := range *m {
		all = append(all, fmt.Sprintf("%s/%d", resource.NewQuantity(one.Memory, resource.BinarySI), one.PeakCompute))
	}
	return strings.Join(all, ",")
}

// Type describes the value in the help text.
func (m *models) Type() string { return "model" }

// memoryUnits are the sizes of one aliyun.com/gpu-mem, by their names in gpushare's device plugin.
var memoryUnits = map[string]int64{"GiB": 1 << 30, "MiB": 1 << 20}

// memoryUnit is a flag with one of memoryUnits, in bytes.
type memoryUnit int64

func addMemoryUnit(f *pflag.FlagSet, unit *int64) {
	*unit = memoryUnits["GiB"]
	f.Var((*memoryUnit)(unit), "gpushare-memory-unit", "what aliyun.com/gpu-mem counts: GiB or MiB, as the flag "+
		"--memory-unit of gpushare's device plugin")
}

// Set sets the unit.
func (m *memoryUnit) Set(text string) error {
	unit, ok := memoryUnits[text]
	if !ok {
		return fmt.Errorf("%q: want GiB or MiB", text)
	}
	*m = memoryUnit(unit)
	return nil
}

// String returns the unit as it is written.
func (m *memoryUnit) String() string {
	for text, unit := range memoryUnits {
		if int64(*m) == unit {
			return text
		}
	}
	return ""
}

// Type describes the value in the help text.
func (m *memoryUnit) Type() string { return "unit" }

// SPDX-License-Identifier: Apache-2.0

// Package api defines the opaque parameters of claims and device classes.
package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

// GroupVersion is the apiVersion of every kind in this package.
const GroupVersion = "resource.nvidia.com/v1beta1"

// Kinds of configuration.
const (
	KindGpuConfig        = "GpuConfig"        // for whole GPUs and shares of them
	KindMigDeviceConfig  = "MigDeviceConfig"  // for MIG partitions
	KindVfioDeviceConfig = "VfioDeviceConfig" // for GPUs of virtual machines
	KindLocalIPCConfig   = "LocalIPCConfig"   // for whole claims, beside the kinds for devices
)

// DeviceConfig is a claim's configuration of its devices. The zero value changes nothing.
type DeviceConfig struct {
	Kind string // empty when nothing was configured
	// Environment is passed to every container that uses the claim.
	Environment map[string]string
	Sharing     Sharing
	IOMMU       IOMMU
	// LocalIPC asks for a directory in memory that only the containers of the claim have, at LocalIPCDir.
	LocalIPC bool
}

// CheckRequests checks the requests that a claim names for the configuration. A LocalIPCConfig is for the whole claim,
// because any of its requests may be that of a container.
func (c DeviceConfig) CheckRequests(requests []string, path *field.Path) error {
	if c.Kind != KindLocalIPCConfig || len(requests) == 0 {
		return nil
	}
	return field.Invalid(path, requests, "a LocalIPCConfig is for the whole claim: leave this out")
}

// What containers find the directory for local IPC by.
const (
	LocalIPCDir      = "/run/nvidia-dra/local-ipc"
	LocalIPCVariable = "NVIDIA_DRA_LOCAL_IPC_DIR"
)

// driverEnv are variables that the driver sets itself. A user who overrides them could lift limits or change which GPUs
// a container sees.
var driverEnv = []string{
	"NVIDIA_VISIBLE_DEVICES", "NVIDIA_CTK_LIBCUDA_DIR", "CUDA_OVERSUBSCRIBE", "CUDA_REDIRECT",
	"GPU_CORE_UTILIZATION_POLICY", LocalIPCVariable,
}

// driverEnvPrefixes are the prefixes of variables that limit a share of a GPU.
var driverEnvPrefixes = []string{"CUDA_MPS_", "CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_", "NVIDIA_GPU_MEMORY_"}

// Kinds has the JSON form of each kind. The tag "doc" of a field is its description in docs/reference/configuration.md.
var Kinds = map[string]any{KindGpuConfig: configJSON{}, KindMigDeviceConfig: configJSON{},
	KindVfioDeviceConfig: vfioJSON{}, KindLocalIPCConfig: localIPCJSON{}}

// configJSON is the JSON form of DeviceConfig.
type configJSON struct {
	APIVersion  string            `json:"apiVersion" doc:"always resource.nvidia.com/v1beta1"`
	Kind        string            `json:"kind" doc:"the name of the kind"`
	Environment map[string]string `json:"environment,omitempty" doc:"variables for every container that uses the claim; those that the driver sets itself are refused"`
	Sharing     sharingJSON       `json:"sharing" doc:"how the containers and pods that have the claim share its devices; none: the driver does nothing about it"`
}

// localIPCJSON is the JSON form of a DeviceConfig that asks for local IPC.
type localIPCJSON struct {
	APIVersion string `json:"apiVersion" doc:"always resource.nvidia.com/v1beta1"`
	Kind       string `json:"kind" doc:"the name of the kind"`
	Enabled    bool   `json:"enabled" doc:"true: every container that uses the claim has a directory in memory at /run/nvidia-dra/local-ipc, which NVIDIA_DRA_LOCAL_IPC_DIR names, and no other container has it; default: false. A claim has this configuration without requests"`
}

// maxProblems is how many problems of one configuration are told. The user decides how many there are.
const maxProblems = 20

// Decode reads the opaque parameters of a claim or class. It is strict: unknown fields, unknown kinds and invalid
// values are errors. The error reports the problems with their paths below root, at most maxProblems.
func Decode(raw []byte, root *field.Path) (DeviceConfig, error) {
	kind, err := checkKind(raw, root)
	if err != nil {
		return DeviceConfig{}, err
	}
	config, errs, err := decode(kind, raw, root)
	if err != nil {
		return DeviceConfig{}, typeError(err, root)
	}
	errs = append(errs, checkEnvironment(config.Environment, root.Child("environment"))...)
	if n := len(errs); n > maxProblems {
		errs = append(errs[:maxProblems], field.Forbidden(root, fmt.Sprintf("%d more problems", n-maxProblems)))
	}
	if len(errs) > 0 {
		return DeviceConfig{}, errs.ToAggregate()
	}
	return config, nil
}

// decode decodes a configuration of a known kind. The error is about a field of the wrong type.
func decode(kind string, raw []byte, root *field.Path) (DeviceConfig, field.ErrorList, error) {
	switch kind {
	case KindVfioDeviceConfig:
		return decodeVFIO(raw, root)
	case KindLocalIPCConfig:
		var in localIPCJSON
		strict, err := kjson.UnmarshalStrict(raw, &in)
		return DeviceConfig{Kind: kind, LocalIPC: in.Enabled},
			unknownFields(strict, root, reflect.TypeFor[localIPCJSON]()), err
	}
	var in configJSON
	strict, err := kjson.UnmarshalStrict(raw, &in)
	errs := unknownFields(strict, root, reflect.TypeFor[configJSON]())
	sharing, problems := in.Sharing.decode(in.Kind, root.Child("sharing"))
	return DeviceConfig{Kind: in.Kind, Environment: in.Environment, Sharing: sharing}, append(errs, problems...), err
}

// unknownFields turns strict decoding errors into field errors.
func unknownFields(strict []error, root *field.Path, of reflect.Type) (errs field.ErrorList) {
	for _, e := range strict {
		errs = append(errs, fieldError(e, root, of))
	}
	return errs
}

// checkKind checks apiVersion and kind, and returns the kind. It comes before the fields, because all fields of another
// kind would be unknown.
func checkKind(raw []byte, root *field.Path) (string, error) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return "", typeError(err, root)
	}
	var errs field.ErrorList
	if meta.APIVersion != GroupVersion {
		errs = append(errs, field.NotSupported(root.Child("apiVersion"), meta.APIVersion, []string{GroupVersion}))
	}
	if kinds := slices.Sorted(maps.Keys(Kinds)); !slices.Contains(kinds, meta.Kind) {
		errs = append(errs, field.NotSupported(root.Child("kind"), meta.Kind, kinds))
	}
	return meta.Kind, errs.ToAggregate()
}

// fieldError turns a strict decoding error into a field error. One about an unknown field names the known one that it
// is nearest to, or all that are known there.
func fieldError(err error, root *field.Path, of reflect.Type) *field.Error {
	var f kjson.FieldError
	if !errors.As(err, &f) {
		return field.Invalid(root, "", err.Error())
	}
	detail, _, _ := strings.Cut(err.Error(), " field ")
	detail += " field"
	parents := strings.Split(f.FieldPath(), ".")
	name := parents[len(parents)-1]
	known := fieldsOf(of, parents[:len(parents)-1])
	if len(known) > 0 && !slices.Contains(known, name) {
		detail += cmp.Or(nearest.Hint(name, known), "; the known fields here are "+strings.Join(known, ", "))
	}
	return field.Forbidden(root.Child(f.FieldPath()), detail)
}

// fieldsOf returns the names of the fields that an object has at the path, in JSON. nil: there is no object with fixed
// fields.
func fieldsOf(t reflect.Type, path []string) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if len(path) > 0 && name == path[0] {
			return fieldsOf(t.Field(i).Type, path[1:])
		}
		names = append(names, name)
	}
	if len(path) > 0 {
		return nil
	}
	return names
}

// typeError says what type a field wants, without the names of this program's types.
func typeError(err error, root *field.Path) error {
	at, text, ok := WrongType(err)
	if !ok {
		return fmt.Errorf("%s: %w", root, err)
	}
	path := root
	if at != "" {
		path = root.Child(at)
	}
	return field.TypeInvalid(path, field.OmitValueType{}, text)
}

// WrongType returns the path of a field of the wrong type, and what it wants, without the names of a program's types.
// ok is false if the error is of another kind.
func WrongType(err error) (path, text string, ok bool) {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return "", "", false
	}
	return wrong.Field, "want " + typeText(wrong.Type) + ", not " + wrong.Value, true
}

// typeText names a type for people.
func typeText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a text"
	}
	return "an object"
}

func checkEnvironment(env map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(env)) {
		at := path.Key(name)
		for _, problem := range validation.IsEnvVarName(name) {
			errs = append(errs, field.Invalid(at, name, problem))
		}
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if slices.Contains(driverEnv, name) || slices.ContainsFunc(driverEnvPrefixes, begins) {
			errs = append(errs, field.Forbidden(at, "the driver sets this variable itself"))
		}
		if strings.ContainsRune(env[name], 0) {
			errs = append(errs, field.Invalid(at, env[name], "must not contain a NUL character"))
		}
		if i := strings.IndexFunc(env[name], isNoYAML); i >= 0 {
			r, _ := utf8.DecodeRuneInString(env[name][i:])
			errs = append(errs, field.Invalid(at, env[name], fmt.Sprintf("must not contain the character %U: "+
				"container runtimes cannot read it", r)))
		}
	}
	return errs
}

// isNoYAML reports whether a character of a text in JSON makes it invalid YAML or means another text there. Container
// runtimes read CDI specs as YAML.
func isNoYAML(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff
}

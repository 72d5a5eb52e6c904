// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

const (
	// schedulerKubeconfig is the path of the scheduler's kubeconfig.
	schedulerKubeconfig = machine.PKI + "/scheduler.conf"
	// schedulerConfig is on the machine's own disk.
	schedulerConfig = "/var/scheduler-config.yaml"
)

func scheduler(o Options) []string {
	command := []string{
		kube + "kube-scheduler",
		"--authentication-kubeconfig=" + schedulerKubeconfig,
		"--authorization-kubeconfig=" + schedulerKubeconfig,
		"--bind-address=127.0.0.1",
	}
	if o.SchedulerConfig != "" {
		command = append(command, "--config="+schedulerConfig)
	} else {
		command = append(command, "--kubeconfig="+schedulerKubeconfig, "--leader-elect=false")
	}
	if o.SchedulerVModule != "" {
		command = append(command, "--vmodule="+o.SchedulerVModule)
	}
	return append(command, gates(o)...)
}

func schedulerFiles(o Options) map[string]string {
	if o.SchedulerConfig == "" {
		return nil
	}
	return map[string]string{schedulerConfig: o.SchedulerConfig}
}

// CompleteSchedulerConfig parses a KubeSchedulerConfiguration and sets what is this cluster's: the kubeconfig, and no
// leader election, because there is only one scheduler. The scheduler validates the rest and logs problems.
func CompleteSchedulerConfig(text []byte) (string, error) {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("parse YAML: %w", err)
	}
	version, _ := config["apiVersion"].(string)
	if kind := config["kind"]; kind != "KubeSchedulerConfiguration" ||
		!strings.HasPrefix(version, "kubescheduler.config.k8s.io/") {
		return "", fmt.Errorf("want kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, got kind %v "+
			"of %q", kind, version)
	}
	err := errors.Join(
		set(config, "clientConnection", "kubeconfig", schedulerKubeconfig),
		set(config, "leaderElection", "leaderElect", false),
	)
	if err != nil {
		return "", err
	}
	completed, err := yaml.Marshal(config)
	return string(completed), err
}

// set sets config.section.field.
func set(config map[string]any, section, field string, value any) error {
	if config[section] == nil {
		config[section] = map[string]any{}
	}
	fields, ok := config[section].(map[string]any)
	if !ok {
		return fmt.Errorf("%s: want fields, got %v", section, config[section])
	}
	fields[field] = value
	return nil
}

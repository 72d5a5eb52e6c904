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
	// schedulerKubeconfig is where the scheduler finds how to reach the API server.
	schedulerKubeconfig = machine.PKI + "/scheduler.conf"
	// schedulerConfig is on a disk of the machine's own.
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

// CompleteSchedulerConfig reads a KubeSchedulerConfiguration and adds what a user cannot know or need not say, unless it is there: how the
// scheduler reaches the API server, and that it is the only one. Whether the rest is right the scheduler says itself, in its log.
func CompleteSchedulerConfig(text []byte) (string, error) {
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("parse YAML: %w", err)
	}
	version, _ := config["apiVersion"].(string)
	if kind := config["kind"]; kind != "KubeSchedulerConfiguration" || !strings.HasPrefix(version, "kubescheduler.config.k8s.io/") {
		return "", fmt.Errorf("want kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, got kind %v of %q", kind, version)
	}
	err := errors.Join(
		setDefault(config, "clientConnection", "kubeconfig", schedulerKubeconfig),
		setDefault(config, "leaderElection", "leaderElect", false),
	)
	if err != nil {
		return "", err
	}
	completed, err := yaml.Marshal(config)
	return string(completed), err
}

// setDefault gives config.section.field the value, unless it has one.
func setDefault(config map[string]any, section, field string, value any) error {
	if config[section] == nil {
		config[section] = map[string]any{}
	}
	fields, ok := config[section].(map[string]any)
	if !ok {
		return fmt.Errorf("%s: want fields, got %v", section, config[section])
	}
	if _, said := fields[field]; !said {
		fields[field] = value
	}
	return nil
}

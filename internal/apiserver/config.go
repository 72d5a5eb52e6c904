// SPDX-License-Identifier: Apache-2.0

// Package apiserver connects the driver's programs to the API server.
package apiserver

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// AddFlag adds the flag --kubeconfig.
func AddFlag(f *pflag.FlagSet, kubeconfig *string) {
	f.StringVar(kubeconfig, "kubeconfig", "", "how to reach the API server; empty: as a pod does")
}

// Config returns the configuration of a client. An empty kubeconfig is that of the pod's service account. There is no
// rate limit: API priority and fairness limits requests on the server.
func Config(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server (--kubeconfig %q): %w", kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

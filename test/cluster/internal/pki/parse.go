// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Access is the content of a kubeconfig.
type Access struct {
	Server string
	CA     []byte
	Client Pair
}

// ParseKubeconfig parses a kubeconfig that Kubeconfig has created.
func ParseKubeconfig(data []byte) (Access, error) {
	var file struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return Access{}, fmt.Errorf("parse kubeconfig: %w", err)
	}
	if len(file.Clusters) != 1 || len(file.Users) != 1 {
		return Access{}, errors.New("parse kubeconfig: want one cluster and one user")
	}
	cluster, user := file.Clusters[0].Cluster, file.Users[0].User
	return Access{Server: cluster.Server, CA: cluster.CA, Client: Pair{Cert: user.Cert, Key: user.Key}}, nil
}

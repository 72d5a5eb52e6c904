// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"encoding/base64"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Kubeconfig returns a self-contained kubeconfig. The name is that of its only cluster, user and context.
func Kubeconfig(name, server string, ca []byte, client Pair) ([]byte, error) {
	text := base64.StdEncoding.EncodeToString
	type object = map[string]any
	data, err := yaml.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": name, "cluster": object{
			"server":                     server,
			"certificate-authority-data": text(ca),
		}}},
		"users": []object{{"name": name, "user": object{
			"client-certificate-data": text(client.Cert),
			"client-key-data":         text(client.Key),
		}}},
		"contexts":        []object{{"name": name, "context": object{"cluster": name, "user": name}}},
		"current-context": name,
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return data, nil
}

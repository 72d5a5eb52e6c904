// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// gpuQuotas is a client of the GPUQuotas of a namespace, or of all.
type gpuQuotas struct {
	client    rest.Interface
	namespace string
}

// List implements lister. A clientset of tests has no GPUQuotas.
func (c gpuQuotas) List(ctx context.Context, o metav1.ListOptions) (*cluster.GPUQuotaList, error) {
	var list cluster.GPUQuotaList
	if c.client == (*rest.RESTClient)(nil) {
		return &list, nil
	}
	path := []string{"/apis", cluster.QuotaVersion.String()}
	if c.namespace != corev1.NamespaceAll {
		path = append(path, "namespaces", c.namespace)
	}
	text, err := c.client.Get().AbsPath(append(path, cluster.GPUQuotas)...).Param("limit", fmt.Sprint(o.Limit)).
		Param("continue", o.Continue).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return &list, json.Unmarshal(text, &list)
}

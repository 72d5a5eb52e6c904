// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// AsPod connects with a token like the pod's own from the kubelet, which contains the pod's node. The user agent
// distinguishes the requests from the pod's own in the audit log.
func (c *Cluster) AsPod(ctx context.Context, pod *corev1.Pod, userAgent string) (*Cluster, error) {
	return c.as(ctx, pod.Namespace, pod.Spec.ServiceAccountName, userAgent,
		&authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
}

// AsServiceAccount connects with a token of a service account that is not bound to a pod or node.
func (c *Cluster) AsServiceAccount(ctx context.Context, namespace, name, userAgent string) (*Cluster, error) {
	return c.as(ctx, namespace, name, userAgent, nil)
}

func (c *Cluster) as(ctx context.Context, namespace, account, userAgent string,
	bound *authenticationv1.BoundObjectReference) (*Cluster, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	token, err := c.set.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for a token of %s/%s: %w", namespace, account, err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.UserAgent = token.Status.Token, userAgent
	return connect(config)
}

// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxRules is how many DeviceTaintRules a run creates.
	maxRules = 200
	// ruleTimeout ends the creation of a rule, and the removal of all, which Ctrl-C does not.
	ruleTimeout = 30 * time.Second
)

// errNoRules means that there are no DeviceTaintRules.
var errNoRules = errors.New("the API server has no DeviceTaintRules in resource.k8s.io/v1 (Kubernetes 1.37 or " +
	"newer), or you may not list them")

// taintRules are DeviceTaintRules that a run has created, or is to remove.
type taintRules struct {
	client kubernetes.Interface
	names  []string
}

// create creates a rule. It does not begin after Ctrl-C, and Ctrl-C does not cut it off.
func (r *taintRules) create(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ruleTimeout)
	defer cancel()
	_, err := r.client.ResourceV1().DeviceTaintRules().Create(ctx, rule, metav1.CreateOptions{})
	// Without an answer, or after an error of the server, the rule may exist.
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) || status.Status().Code >= 500 {
		r.names = append(r.names, rule.Name)
	}
	return err
}

// remove removes the rules, also after Ctrl-C. The error names those that remain.
func (r *taintRules) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ruleTimeout)
	defer cancel()
	var all []error
	for _, name := range r.names {
		err := r.client.ResourceV1().DeviceTaintRules().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			all = append(all, fmt.Errorf("remove the DeviceTaintRule %s, which keeps pods away from GPUs: %w", name,
				err))
		}
	}
	return errors.Join(all...)
}

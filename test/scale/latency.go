// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// latency asks for a namespace again and again until stop is called, which returns the time of each answer, sorted. A
// namespace is as small as objects are.
func latency(ctx context.Context, client kubernetes.Interface) (stop func() ([]time.Duration, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var took []time.Duration
	done := make(chan error)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			begin := time.Now()
			_, err := client.CoreV1().Namespaces().Get(context.WithoutCancel(ctx), "default", metav1.GetOptions{})
			took = append(took, time.Since(begin))
			if err != nil || ctx.Err() != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return func() ([]time.Duration, error) {
		cancel()
		err := <-done
		slices.Sort(took)
		return took, err
	}
}

// at returns a quantile of sorted times in milliseconds.
func at(took []time.Duration, quantile float64) float64 {
	return 1000 * took[int(float64(len(took)-1)*quantile)].Seconds()
}

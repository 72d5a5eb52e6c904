// SPDX-License-Identifier: Apache-2.0

package feature

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// EventHandler passes the events of an informer to two functions. A panic about one object is counted, and logged.
func EventHandler[T metav1.Object](guard Guard, set, drop func(T)) toolscache.ResourceEventHandler {
	pass := func(obj any, to func(T)) {
		if o, ok := obj.(T); ok {
			_ = guard.Do("follow objects", func() error { to(o); return nil }) // it is logged
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { pass(obj, set) },
		UpdateFunc: func(old, obj any) {
			// After a broken watch, another object of the same name is an update.
			if was, is := old.(metav1.Object), obj.(metav1.Object); was.GetUID() != is.GetUID() {
				pass(old, drop)
			}
			pass(obj, set)
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			pass(obj, drop)
		},
	}
}

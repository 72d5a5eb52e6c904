// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/protobuf/encoding/protowire"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// Devices says what is kept of slices and their devices. Of the rest, little is decoded: a large cluster has 100,000
// devices. Equal devices share their parts, which must not be changed.
type Devices struct {
	// Keep reports whether the device is kept, and with it the attributes that identify it. consumes is true for a
	// device that consumes counters. The calls have the order of the devices; the slice has none. nil: all are kept.
	Keep func(slice *resourceapi.ResourceSlice, device string, consumes bool) (keep, identity bool)
	// Attribute reports whether the attribute is kept. nil: all are kept.
	Attribute func(name resourceapi.QualifiedName) bool
	// Counters keeps the counters of slices and what devices consume of them. Without it, a device that consumes some
	// has one empty consumption.
	Counters bool
}

// keep calls Keep, and returns whether an attribute is kept; nil: the device is not.
func (k *Devices) keep(slice *resourceapi.ResourceSlice, device string,
	consumes bool) func(resourceapi.QualifiedName) bool {
	keep, identity := true, true
	if k.Keep != nil {
		keep, identity = k.Keep(slice, device, consumes)
	}
	if !keep {
		return nil
	}
	return func(name resourceapi.QualifiedName) bool {
		return (identity || !cluster.IsIdentity(name)) && (k.Attribute == nil || k.Attribute(name))
	}
}

// Shorten drops of decoded slices what is not kept.
func (k Devices) Shorten(list *resourceapi.ResourceSliceList) {
	l := &sliceDecoder{parts: cluster.Parts{}, Devices: k}
	for i := range list.Items {
		l.shorten(&list.Items[i])
	}
}

// sliceDecoder decodes the slices of a list.
type sliceDecoder struct {
	Devices
	devices     func() Devices // returns these; nil: they are known
	parts       cluster.Parts
	common, own []byte // of a device; they are used again
}

// undecodedSlice is decoded while the next page is read.
type undecodedSlice struct {
	runtime.Unknown                            // its protobuf
	decoded         *resourceapi.ResourceSlice // nil, unless the API server does not answer in protobuf
	by              *sliceDecoder
}

// decode must be called in the order of the slices.
func (u *undecodedSlice) decode() (*resourceapi.ResourceSlice, error) {
	l := u.by
	if l.devices != nil {
		l.Devices, l.devices = l.devices(), nil
	}
	if u.decoded != nil {
		l.shorten(u.decoded)
		return u.decoded, nil
	}
	s := &resourceapi.ResourceSlice{}
	if err := l.slice(u.Raw, s); err != nil {
		return nil, fmt.Errorf("decode slices: %w", err)
	}
	return s, nil
}

// slices returns the function that lists slices, each an undecodedSlice.
func (r Reader) slices(client resourceclient.ResourceV1Interface) func(context.Context, metav1.ListOptions) (
	*metav1.List, error) {
	var l *sliceDecoder
	var fit int64 // how many slices the next page may have
	return func(ctx context.Context, o metav1.ListOptions) (*metav1.List, error) {
		if o.Continue == "" { // the first page
			l = &sliceDecoder{parts: cluster.Parts{}, Devices: Devices{Counters: true}, devices: r.Devices}
		} else {
			o.Limit = max(o.Limit, fit)
		}
		list := &resourceapi.ResourceSliceList{}
		text, err := page(ctx, client, o, list)
		if err != nil {
			return nil, err
		}
		all := &metav1.List{ListMeta: list.ListMeta}
		add := func(u undecodedSlice) { all.Items = append(all.Items, runtime.RawExtension{Object: &u}) }
		for i := range list.Items {
			add(undecodedSlice{decoded: &list.Items[i], by: l})
		}
		if err := fields(text, func(number protowire.Number, value, _ []byte) error {
			switch number {
			case 1:
				return all.ListMeta.Unmarshal(value)
			case 2:
				add(undecodedSlice{Unknown: runtime.Unknown{Raw: value}, by: l})
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("decode slices: %w", err)
		}
		if len(text) > 0 {
			fit = min(perPage, 2*o.Limit, pageBytes*int64(len(all.Items))/int64(len(text)))
		}
		return all, nil
	}
}

// page returns a page of slices as protobuf, or decodes it if the API server does not answer in protobuf.
func page(ctx context.Context, client resourceclient.ResourceV1Interface, o metav1.ListOptions,
	into *resourceapi.ResourceSliceList) (protobuf []byte, err error) {
	raw := client.RESTClient()
	if raw == (*rest.RESTClient)(nil) { // a clientset of tests
		list, err := client.ResourceSlices().List(ctx, o)
		if err == nil {
			*into = *list
		}
		return nil, err
	}
	result := raw.Get().UseProtobufAsDefault().Resource(cluster.Slices).
		VersionedParams(&o, scheme.ParameterCodec).Do(ctx)
	if err := result.Error(); err != nil { // Raw does not decode what the API server says
		return nil, err
	}
	var form string
	if result.ContentType(&form); form != runtime.ContentTypeProtobuf {
		return nil, result.Into(into)
	}
	answer, err := result.Raw()
	if err != nil {
		return nil, err
	}
	return content(answer)
}

// shorten drops of a decoded slice what is not kept.
func (l *sliceDecoder) shorten(s *resourceapi.ResourceSlice) {
	all := s.Spec.Devices
	s.ManagedFields, s.Spec.Devices = nil, nil
	if !l.Counters {
		s.Spec.SharedCounters = nil
	}
	var kept []resourceapi.Device
	for _, d := range all {
		consumes := len(d.ConsumesCounters) > 0
		keeps := l.keep(s, d.Name, consumes)
		if keeps == nil {
			continue
		}
		maps.DeleteFunc(d.Attributes, func(name resourceapi.QualifiedName, _ resourceapi.DeviceAttribute) bool {
			return !keeps(name)
		})
		if consumes && !l.Counters {
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{}}
		}
		l.parts.Share(&d)
		kept = append(kept, d)
	}
	s.Spec.Devices = kept
}

// The rest of this file reads what k8s.io/api/resource/v1/generated.proto describes.

// content returns the object of an answer: k8s\0 and a runtime.Unknown.
func content(answer []byte) (object []byte, err error) {
	answer, ok := bytes.CutPrefix(answer, []byte("k8s\x00"))
	if !ok {
		return nil, errors.New("the answer does not begin as protobuf of Kubernetes does")
	}
	return object, fields(answer, func(number protowire.Number, value, _ []byte) error {
		if number == 2 {
			object = value
		}
		return nil
	})
}

// fields calls each for every field of a message, with its bytes, and with the whole field.
func fields(message []byte, each func(number protowire.Number, value, whole []byte) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		length := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if length < 0 {
			return protowire.ParseError(length)
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[tag:])
		}
		if err := each(number, value, message[:tag+length]); err != nil {
			return err
		}
		message = message[tag+length:]
	}
	return nil
}

// slice decodes a ResourceSlice.
func (l *sliceDecoder) slice(text []byte, into *resourceapi.ResourceSlice) error {
	return fields(text, func(number protowire.Number, value, _ []byte) error {
		switch number {
		case 1:
			err := into.ObjectMeta.Unmarshal(value)
			into.ManagedFields = nil
			return err
		case 2:
			return l.spec(value, into)
		}
		return nil
	})
}

// spec decodes a ResourceSliceSpec: the devices last.
func (l *sliceDecoder) spec(text []byte, into *resourceapi.ResourceSlice) error {
	var rest []byte
	var all [][]byte
	if err := fields(text, func(number protowire.Number, value, whole []byte) error {
		switch {
		case number == 6:
			all = append(all, value)
		case number != 8 || l.Counters:
			rest = append(rest, whole...)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := into.Spec.Unmarshal(rest); err != nil {
		return err
	}
	var kept []resourceapi.Device
	for _, text := range all {
		d, err := l.device(text, into)
		if err != nil {
			return err
		}
		if d != nil {
			kept = append(kept, *d)
		}
	}
	into.Spec.Devices = kept
	return nil
}

// emptyConsumption is the field consumesCounters of a Device, with an empty message.
var emptyConsumption = []byte{4<<3 | byte(protowire.BytesType), 0}

// device decodes a Device. It returns nil if that is not kept.
func (l *sliceDecoder) device(text []byte, of *resourceapi.ResourceSlice) (*resourceapi.Device, error) {
	var name string
	consumes := false
	if err := fields(text, func(number protowire.Number, value, _ []byte) error {
		switch number {
		case 1:
			name = string(value)
		case 4:
			consumes = true
		}
		return nil
	}); err != nil {
		return nil, err
	}
	keeps := l.keep(of, name, consumes)
	if keeps == nil {
		return nil, nil
	}
	// What equal devices have in common, and the rest.
	common, own := l.common[:0], l.own[:0]
	if consumes && !l.Counters {
		common = append(common, emptyConsumption...)
	}
	if err := fields(text, func(number protowire.Number, value, whole []byte) error {
		switch number {
		case 2:
			name, err := keyOf(value)
			switch {
			case err != nil || !keeps(name):
				return err
			case cluster.IsIdentity(name):
				own = append(own, whole...)
			default:
				common = append(common, whole...)
			}
		case 3:
			common = append(common, whole...)
		case 4:
			if l.Counters {
				common = append(common, whole...)
			}
		default:
			own = append(own, whole...)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	l.common, l.own = common, own
	parts, known := l.parts[string(common)]
	if !known {
		if err := parts.Unmarshal(common); err != nil {
			return nil, err
		}
		l.parts[string(common)] = parts
	}
	d := &resourceapi.Device{}
	if err := d.Unmarshal(own); err != nil {
		return nil, err
	}
	if identity := d.Attributes; identity != nil {
		d.Attributes = make(map[resourceapi.QualifiedName]resourceapi.DeviceAttribute,
			len(identity)+len(parts.Attributes))
		maps.Copy(d.Attributes, parts.Attributes)
		maps.Copy(d.Attributes, identity)
	} else {
		d.Attributes = parts.Attributes
	}
	d.Capacity, d.ConsumesCounters = parts.Capacity, parts.ConsumesCounters
	return d, nil
}

// keyOf returns the key of a map's entry.
func keyOf(entry []byte) (key resourceapi.QualifiedName, err error) {
	return key, fields(entry, func(number protowire.Number, value, _ []byte) error {
		if number == 1 {
			key = resourceapi.QualifiedName(value)
		}
		return nil
	})
}

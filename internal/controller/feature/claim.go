// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
)

// AnnotatedClaim is a claim, or what a template makes claims from.
type AnnotatedClaim struct {
	// Metadata is nil if the object has none: a JSON patch of the annotations must add it.
	Metadata *struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec resourceapi.ResourceClaimSpec `json:"spec"`
}

// Annotations returns the annotations; nil: there are none.
func (c AnnotatedClaim) Annotations() map[string]string {
	if c.Metadata == nil {
		return nil
	}
	return c.Metadata.Annotations
}

// DecodeClaim decodes a ResourceClaim, or what a ResourceClaimTemplate makes claims from. at is the place of the claim
// in the object, as a JSON pointer.
func DecodeClaim(kind string, raw []byte) (claim AnnotatedClaim, at string, err error) {
	if kind != "ResourceClaimTemplate" {
		err = json.Unmarshal(raw, &claim)
		return claim, "", err
	}
	var template struct {
		Spec AnnotatedClaim `json:"spec"`
	}
	err = json.Unmarshal(raw, &template)
	return template.Spec, "/spec", err
}

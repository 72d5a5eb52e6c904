// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push copies the images to a registry, below a prefix such as registry.example.com/team. It logs in as `docker login`
// has left it.
func push(ctx context.Context, prefix string, images []named) error {
	for _, image := range images {
		target := prefix + "/" + path.Base(image.name)
		tag, err := name.NewTag(target)
		if err != nil {
			return fmt.Errorf("push %s: %w", target, err)
		}
		err = remote.Write(tag, image.image, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			return fmt.Errorf("push %s: %w", target, err)
		}
		digest, err := image.image.Digest()
		if err != nil {
			return fmt.Errorf("push %s: %w", target, err)
		}
		fmt.Printf("pushed %s@%s\n", target, digest)
	}
	return nil
}

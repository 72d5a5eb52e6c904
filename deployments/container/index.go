// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// indexed is an image for several platforms and its reference.
type indexed struct {
	name  string
	index v1.ImageIndex
}

// newIndexes makes one index of the images of each name. images has those of each platform, in the order of platforms.
func newIndexes(prefix, version string, platforms []platform, images [][]named) []indexed {
	var indexes []indexed
	for i := range images[0] {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for j, p := range platforms {
			oci := p.oci()
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[j][i].image,
				Descriptor: v1.Descriptor{Platform: &oci}})
		}
		title := path.Base(images[0][i].name)
		indexes = append(indexes, indexed{prefix + "/" + title[:len(title)-len(version)-1] + ":" + version, index})
	}
	return indexes
}

// writeReleaseLayout writes the indexes and the chart as an OCI layout, which skopeo and podman can read.
func writeReleaseLayout(dir string, indexes []indexed, chart named) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	annotation := func(name string) layout.Option {
		return layout.WithAnnotations(map[string]string{containerdName: name,
			"org.opencontainers.image.ref.name": name})
	}
	for _, i := range indexes {
		if err := path.AppendIndex(i.index, annotation(i.name)); err != nil {
			return fmt.Errorf("add %s: %w", i.name, err)
		}
	}
	if err := path.AppendImage(chart.image, annotation(chart.name)); err != nil {
		return fmt.Errorf("add %s: %w", chart.name, err)
	}
	return nil
}

// pushRelease copies the indexes and the chart to where their names say. It logs in as `docker login` has left it.
func pushRelease(ctx context.Context, indexes []indexed, chart named) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, i := range indexes {
		tag, err := name.NewTag(i.name)
		if err != nil {
			return fmt.Errorf("push %s: %w", i.name, err)
		}
		if err := remote.WriteIndex(tag, i.index, options...); err != nil {
			return fmt.Errorf("push %s: %w", i.name, err)
		}
		fmt.Println("pushed", i.name)
	}
	tag, err := name.NewTag(chart.name)
	if err != nil {
		return fmt.Errorf("push %s: %w", chart.name, err)
	}
	if err := remote.Write(tag, chart.image, options...); err != nil {
		return fmt.Errorf("push %s: %w", chart.name, err)
	}
	fmt.Println("pushed", chart.name)
	return nil
}

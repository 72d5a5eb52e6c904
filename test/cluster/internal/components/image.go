// SPDX-License-Identifier: Apache-2.0

package components

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// PauseImage is the name of the sandbox image on every node.
const PauseImage = "localhost/gpu-dra-cluster-pause:1"

// PauseArchive is the file with the sandbox image, in the folder of Pause.
const PauseArchive = "pause.tar"

//go:embed pause/main.go
var pauseSource string

// BuildPause builds the archive of the sandbox image if it is not cached, and returns its folder.
func (c Cache) BuildPause(ctx context.Context) (string, error) {
	version, err := goVersion(ctx, c.Source)
	if err != nil {
		return "", err
	}
	key := Pause + "-1-" + hash(pauseSource, version, runtime.GOARCH, PauseImage)
	return c.fill(ctx, key, "pause image", func(dir string) error {
		binary, err := compilePause(ctx, dir)
		if err != nil {
			return err
		}
		return writePause(filepath.Join(dir, PauseArchive), binary)
	})
}

// compilePause builds the program outside any module: it is one file without dependencies, and the repository may be
// read-only.
func compilePause(ctx context.Context, dir string) ([]byte, error) {
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(pauseSource), 0o644); err != nil {
		return nil, err
	}
	defer os.Remove(source)
	binary := filepath.Join(dir, "pause")
	defer os.Remove(binary)
	args := append([]string{"build", "-ldflags", "-s -w", "-o", binary, "-tags", sharedTags}, sharedFlags...)
	if err := goBuild(ctx, dir, "CGO_ENABLED=0", append(args, source), &buildOutput{}); err != nil {
		return nil, err
	}
	return os.ReadFile(binary)
}

func writePause(path string, binary []byte) error {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(binary))}); err != nil {
		return err
	}
	if _, err := w.Write(binary); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	image, err = mutate.ConfigFile(image, pauseConfig(image))
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	tag, err := name.NewTag(PauseImage)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	return tarball.WriteToFile(path, tag, image)
}

func pauseConfig(image v1.Image) *v1.ConfigFile {
	config, err := image.ConfigFile()
	if err != nil {
		config = &v1.ConfigFile{}
	}
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint = []string{"/pause"}
	return config
}

// BuildRunning builds everything that a cluster of this version of Kubernetes runs and that is not cached. version: see
// Kubernetes.
func (c Cache) BuildRunning(ctx context.Context, version string) (Dirs, error) {
	kubernetes, err := c.Kubernetes(version)
	if err != nil {
		return nil, err
	}
	dirs, err := c.Build(ctx, running(kubernetes))
	if err != nil {
		return nil, err
	}
	dirs[Pause], err = c.BuildPause(ctx)
	return dirs, err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// containerdName is the annotation by which containerd names an image that it imports.
const containerdName = "io.containerd.image.name"

// writeArchive writes the images as one OCI layout in a tar file and returns its size in bytes. The file is whole or
// what it was before.
func writeArchive(file string, images []named) (int64, error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), "layout-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the OCI layout: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := writeLayout(dir, images); err != nil {
		return 0, fmt.Errorf("write OCI layout: %w", err)
	}
	tmp := dir + ".tar" // another process may write the same file
	defer os.Remove(tmp)
	size, err := tarDirectory(tmp, dir)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", file, err)
	}
	return size, os.Rename(tmp, file)
}

func writeLayout(dir string, images []named) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, image := range images {
		annotations := map[string]string{
			containerdName:                      image.name,
			"org.opencontainers.image.ref.name": image.name, // by which skopeo and podman find one of several
		}
		err := path.AppendImage(image.image, layout.WithAnnotations(annotations),
			layout.WithPlatform(native.oci()))
		if err != nil {
			return fmt.Errorf("add %s: %w", image.name, err)
		}
	}
	return nil
}

// tarDirectory writes the files of dir in the order of their names, without times or owners.
func tarDirectory(file, dir string) (int64, error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return tarFile(w, dir, path)
	})
	if err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	return size, f.Close()
}

func tarFile(w *tar.Writer, dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: stat.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

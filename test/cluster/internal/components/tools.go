// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"os"
	"path/filepath"
)

// Tools returns a folder with only kubectl and helm, for PATH. It builds them if they are missing.
func (c Cache) Tools(ctx context.Context) (string, error) {
	dirs, err := c.Build(ctx, []Component{newest()})
	if err != nil {
		return "", err
	}
	kubectl := filepath.Join(dirs[Kubernetes], "kubectl")
	helm := filepath.Join(dirs[Helm], "helm")
	return c.fill(ctx, "tools-"+hash(kubectl, helm), "folder with kubectl and helm", func(dir string) error {
		if err := os.Symlink(kubectl, filepath.Join(dir, "kubectl")); err != nil {
			return err
		}
		return os.Symlink(helm, filepath.Join(dir, "helm"))
	})
}

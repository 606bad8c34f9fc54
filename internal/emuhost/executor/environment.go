// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DefaultEnvironment is that of commands which bring none. Do not change it.
var DefaultEnvironment = []string{"PATH=" + defaultPath, "HOME=/root", "TERM=dumb", "LANG=C.UTF-8"}

// lookPath finds a program as a shell would, with the command's own PATH and
// working directory instead of the agent's.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) {
			return name, nil
		}
		return filepath.Join(dir, name), nil
	}
	path := defaultPath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		file := filepath.Join(folder, name)
		if stat, err := os.Stat(file); err == nil && stat.Mode().IsRegular() && stat.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: command not found in %s", name, path)
}

// startFailure gives the exit status that POSIX shells use for a command that
// could not be started.
func startFailure(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

func stringsOf(bytes [][]byte) []string {
	out := make([]string, len(bytes))
	for i, b := range bytes {
		out[i] = string(b)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxModuleSize bounds what a compressed module may unpack to, in bytes. The
// largest of Debian's are graphics drivers of about 20 MiB with their debug
// information removed.
const maxModuleSize = 256 << 20

// moduleSuffixes are the file name endings of modules, as kbuild's
// CONFIG_MODULE_COMPRESS_* options make them.
var moduleSuffixes = []string{".ko", ".ko.gz", ".ko.xz", ".ko.zst"}

// moduleName returns the canonical module name of a file name, and whether it
// is a module's at all.
func moduleName(file string) (name string, ok bool) {
	for _, suffix := range moduleSuffixes {
		if base, found := strings.CutSuffix(file, suffix); found && base != "" {
			return canonicalName(base), true
		}
	}
	return "", false
}

// readModule returns the uncompressed contents of a module file.
func readModule(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data, err := decompress(path, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot decompress: %w", path, err)
	}
	return data, nil
}

// decompress unpacks raw by the ending of its file name.
func decompress(name string, raw []byte) ([]byte, error) {
	var (
		r   io.Reader
		err error
	)
	switch {
	case strings.HasSuffix(name, ".gz"):
		r, err = gzip.NewReader(bytes.NewReader(raw))
	case strings.HasSuffix(name, ".xz"):
		r, err = xz.NewReader(bytes.NewReader(raw))
	case strings.HasSuffix(name, ".zst"):
		var d *zstd.Decoder
		d, err = zstd.NewReader(bytes.NewReader(raw), zstd.WithDecoderConcurrency(1))
		if err == nil {
			defer d.Close()
		}
		r = d
	default:
		return raw, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModuleSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxModuleSize {
		return nil, fmt.Errorf("unpacks to more than %d MiB", maxModuleSize>>20)
	}
	return data, nil
}

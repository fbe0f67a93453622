package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pypi is the package index of a machine whose pip has no configuration.
const pypi = "https://pypi.org/simple"

// A pip is what the user's configuration of pip says.
type pip struct {
	indexes     []string // the first one first
	cert, proxy string
	noIndex     bool
}

// pipSettings reads the user's configuration of pip. The environment comes before the files, and a
// later file before an earlier. A section of a command comes before the section global. As for pip,
// an empty value counts as none.
func pipSettings() pip {
	files := []string{"/etc/xdg/pip/pip.conf", "/etc/pip.conf", under("HOME", ".pip/pip.conf"), under("XDG_CONFIG_HOME", "pip/pip.conf"), under("VIRTUAL_ENV", "pip.conf")}
	if os.Getenv("XDG_CONFIG_HOME") == "" {
		files[3] = under("HOME", ".config/pip/pip.conf")
	}
	if named := os.Getenv("PIP_CONFIG_FILE"); named != "" {
		files = append(files, named)
		if named == os.DevNull {
			files = nil
		}
	}
	sections := map[string]string{}
	for _, file := range files {
		readPipConfig(file, sections)
	}
	value := func(name string) string {
		if v := strings.TrimSpace(os.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))); v != "" {
			return v
		}
		for _, section := range []string{"install", "download", "global"} {
			if v := sections[section+"."+name]; v != "" {
				return v
			}
		}
		return ""
	}
	p := pip{cert: value("cert"), proxy: value("proxy")}
	first := value("index-url")
	if first == "" {
		first = pypi
	}
	p.indexes = strings.Fields(first + " " + value("extra-index-url"))
	p.noIndex = slices.Contains([]string{"1", "y", "yes", "t", "true", "on"}, strings.ToLower(value("no-index")))
	return p
}

func under(variable, name string) string {
	if folder := os.Getenv(variable); folder != "" {
		return filepath.Join(folder, name)
	}
	return ""
}

// readPipConfig adds the settings of a file, if it is there, as SECTION.NAME.
func readPipConfig(path string, settings map[string]string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	section, name := "", ""
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if name != "" && (line[0] == ' ' || line[0] == '\t') {
			settings[name] = strings.TrimSpace(settings[name] + " " + text)
			continue
		}
		if text[0] == '[' {
			section, name = strings.Trim(text, "[]"), ""
			continue
		}
		name = ""
		if at := strings.IndexAny(text, "=:"); at > 0 {
			key := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text[:at]), "_", "-"))
			name = section + "." + strings.TrimPrefix(key, "--")
			settings[name] = strings.TrimSpace(text[at+1:])
		}
	}
}

// netrc returns the user and password that $NETRC or ~/.netrc has for a host, or nil.
func netrc(host string) *url.Userinfo {
	text, _ := os.ReadFile(variable("NETRC", under("HOME", ".netrc")))
	words := strings.Fields(string(text))
	here, user := false, ""
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "default":
			here = true
			continue
		case "machine":
			here = words[i+1] == host
		case "login":
			user = words[i+1]
		case "password":
			if here {
				return url.UserPassword(user, words[i+1])
			}
		}
		i++
	}
	return nil
}

var anchor = regexp.MustCompile(`href\s*=\s*["']([^"'#]+)#sha256=([0-9a-fA-F]{64})`)

// errIndex is wrapped by the error for an index whose URL is none. The URL may have a password, so
// the error does not have it.
var errIndex = errors.New("the index URL of pip's configuration (or -index) cannot be read")

// urlOf returns the address of a wheel, as a package index tells it.
func (in *Installer) urlOf(ctx context.Context, client *http.Client, index string, w wheel) (found string, err error) {
	from, err := url.Parse(index)
	if err != nil || from.Host == "" || from.Scheme != "http" && from.Scheme != "https" {
		return "", fmt.Errorf("%w; write it as https://HOST/simple, and special characters of a password as %%XX", errIndex)
	}
	if from = from.JoinPath(w.name, "/"); from.User == nil {
		from.User = netrc(from.Hostname())
	}
	header := http.Header{"Accept": {"application/vnd.pypi.simple.v1+json, text/html;q=0.5"}}
	err = in.again(ctx, w.title(), func() error {
		return in.get(ctx, client, from.String(), header, func(response *http.Response, body io.Reader) error {
			if response.StatusCode != http.StatusOK {
				return refusal(response)
			}
			text, err := io.ReadAll(io.LimitReader(body, 64<<20))
			if err != nil {
				return err
			}
			found, err = linkOf(response, text, from, w)
			return err
		})
	})
	return found, err
}

// linkOf returns the address of a wheel on the page of an index.
func linkOf(response *http.Response, text []byte, index *url.URL, w wheel) (found string, err error) {
	if strings.Contains(response.Header.Get("Content-Type"), "json") {
		found, err = inJSON(text, w)
		if err != nil {
			return "", fmt.Errorf("%w of a package index: %w", errPage, err)
		}
	} else {
		for _, match := range anchor.FindAllSubmatch(text, -1) {
			if strings.EqualFold(string(match[2]), w.sha256) {
				found = string(match[1])
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("%s has %s, but not the file that wheels.lock names: %w", response.Request.URL.Host, w.name, errStatus)
	}
	return resolve(response.Request.URL, index, found)
}

func inJSON(text []byte, w wheel) (string, error) {
	var page struct {
		Files []struct {
			URL    string
			Hashes map[string]string
		}
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return "", err
	}
	for _, f := range page.Files {
		if strings.EqualFold(f.Hashes["sha256"], w.sha256) {
			return f.URL, nil
		}
	}
	return "", nil
}

// resolve returns the address of a link on a page. A file of the index's own host gets the user and
// password of the index, if it comes by the same protocol.
func resolve(page, index *url.URL, link string) (string, error) {
	at, err := page.Parse(strings.ReplaceAll(link, "&amp;", "&"))
	if err != nil {
		return "", fmt.Errorf("%w of a package index: it has a link that is no URL", errPage)
	}
	if at.User == nil && sameOrigin(at, index) {
		at.User = index.User
	}
	return at.String(), nil
}

// Renders templates as Go does; see main.go.
module towline.dev/integration/templates

go 1.26.0

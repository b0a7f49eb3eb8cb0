module kvspec.example/node

go 1.23
